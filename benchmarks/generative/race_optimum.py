"""Texts of Optimum's loop: `python race_optimum.py FOLDER THREADS`, in its environment."""

import sys
from collections.abc import Iterator

import onnxruntime
import torch
from optimum.onnxruntime import ORTModelForCausalLM
from turns import serve


def main() -> None:
    """Answer requests."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = int(sys.argv[2])
    torch.set_num_threads(int(sys.argv[2]))
    model = ORTModelForCausalLM.from_pretrained(sys.argv[1], session_options=options)

    def write(prompt: list[int], most: int) -> Iterator[int]:
        ids, past, length = torch.tensor([prompt]), None, 0
        for _ in range(most):
            length += ids.shape[1]
            with torch.no_grad():
                output = model(
                    input_ids=ids,
                    attention_mask=torch.ones((1, length), dtype=torch.long),
                    past_key_values=past,
                    use_cache=True,
                )
            past = output.past_key_values
            token = int(output.logits[0, -1].argmax())
            ids = torch.tensor([[token]])
            yield token

    serve(write)


if __name__ == "__main__":
    main()

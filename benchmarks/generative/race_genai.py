"""Texts of onnxruntime-genai: `python race_genai.py FOLDER THREADS`, in its environment."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import onnxruntime_genai as genai
from turns import serve


def main() -> None:
    """Answer requests."""
    folder, threads = Path(sys.argv[1]), int(sys.argv[2])
    document = json.loads((folder / "genai_config.json").read_text())
    document["model"]["decoder"]["session_options"]["intra_op_num_threads"] = threads
    (folder / "genai_config.json").write_text(json.dumps(document))
    model = genai.Model(str(folder))

    def write(prompt: list[int], most: int) -> Iterator[int]:
        parameters = genai.GeneratorParams(model)
        parameters.set_search_options(
            max_length=len(prompt) + most, min_length=len(prompt) + most, do_sample=False
        )
        generator = genai.Generator(model, parameters)
        generator.append_tokens(prompt)
        for _ in range(most):
            generator.generate_next_token()
            yield int(generator.get_next_tokens()[0])

    serve(write)


if __name__ == "__main__":
    main()

"""Write `exports/`: small decoders with drawn weights, exported by Optimum with their cache.

Run in an environment with PyTorch, from the root of the repository:

    pip install torch==2.13.0 transformers==4.57.6 optimum-onnx
    python -m tests.huggingface.record_exports
"""

import tempfile
from pathlib import Path

import torch
from optimum.exporters.onnx import main_export
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from tests.huggingface.drawn_decoders import VOCABULARY, write_tokenizer

HERE = Path(__file__).parent / "exports"
KEPT = ("config.json", "generation_config.json", "model.onnx")


def record() -> None:
    """Export both decoders."""
    torch.manual_seed(0)
    special = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
    gpt2 = GPT2Config(
        vocab_size=VOCABULARY, n_embd=32, n_layer=1, n_head=2, n_positions=64, **special
    )
    llama = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        **special,
    )
    for name, model in (("gpt2", GPT2LMHeadModel(gpt2)), ("llama", LlamaForCausalLM(llama))):
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(torch.randn_like(weight) * 0.2)
        with tempfile.TemporaryDirectory() as work:
            model.save_pretrained(Path(work) / "model")
            main_export(
                str(Path(work) / "model"), Path(work) / "out", task="text-generation-with-past"
            )
            folder = HERE / name
            folder.mkdir(parents=True, exist_ok=True)
            for file in KEPT:
                (folder / file).write_bytes((Path(work) / "out" / file).read_bytes())
        write_tokenizer(folder, VOCABULARY)


if __name__ == "__main__":
    record()

"""Write `encoder_decoders/marian/`: a small translator with a cache, and texts that it writes.

The model learns for a minute to write sequences of tokens in reverse, so that its texts differ in
their ends. `generation.json` has texts of transformers' `generate` by several settings. Run in an
environment with PyTorch, from the root of the repository:

    pip install torch==2.14.1 transformers==4.57.6 optimum-onnx==0.1.0
    python -m tests.huggingface.record_generation
"""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from optimum.exporters.onnx import main_export
from transformers import GenerationConfig, MarianConfig, MarianMTModel

HERE = Path(__file__).parent / "encoder_decoders" / "marian"
TEXTS = HERE.parent / "generation.json"
KEPT = ("config.json", "generation_config.json", "encoder_model.onnx", "decoder_model.onnx")
WORDS, END, PAD = 24, 0, 25
PROMPTS = 8
SETTINGS: list[dict[str, Any]] = [
    {},
    {"num_beams": 3},
    {
        "num_beams": 4,
        "length_penalty": 2.0,
        "early_stopping": True,
        "no_repeat_ngram_size": 2,
        "min_length": 5,
        "forced_bos_token_id": 7,
    },
    {"num_beams": 4, "early_stopping": "never", "length_penalty": 0.6},
    {"num_beams": 5, "length_penalty": -1.0},
    {"num_beams": 2, "bad_words_ids": [[5], [9, 10], [3, 4, 5]], "repetition_penalty": 1.5},
    {"repetition_penalty": 1.3, "no_repeat_ngram_size": 3},
    {"num_beams": 6, "begin_suppress_tokens": [8, 9, 1], "suppress_tokens": [11, 12]},
    {"forced_bos_token_id": 6, "min_new_tokens": 4, "bad_words_ids": [[20]]},
    {"eos_token_id": [END, 13, 14], "num_beams": 3},
    {"num_beams": 4, "max_length": 9, "length_penalty": 0.0, "early_stopping": True},
    {"num_beams": 3, "forced_eos_token_id": END, "max_new_tokens": 6},
]


def prompt(number: int) -> list[int]:
    """Return the tokens of a prompt; the tests compute the same."""
    places = range(3 + number % 6)
    return [*(1 + (number * 7 + 5 * place * place + place) % WORDS for place in places), END]


def train() -> MarianMTModel:
    """Return the model."""
    torch.manual_seed(0)
    model = MarianMTModel(
        MarianConfig(
            vocab_size=PAD + 1,
            d_model=32,
            encoder_layers=1,
            decoder_layers=2,
            encoder_attention_heads=2,
            decoder_attention_heads=2,
            encoder_ffn_dim=48,
            decoder_ffn_dim=48,
            max_position_embeddings=64,
            pad_token_id=PAD,
            eos_token_id=END,
            decoder_start_token_id=PAD,
            forced_eos_token_id=None,
        )
    )
    steps = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for number in range(500):
        length = 3 + number % 6
        words = torch.randint(1, WORDS + 1, (64, length))
        end = torch.full((64, 1), END)
        ids = torch.cat([words, end], 1)
        keep = torch.rand(64, length) > 0.1  # Some words are read as others.
        said = torch.where(keep, words.flip(1), torch.randint(1, WORDS + 1, (64, length)))
        labels = torch.cat([said, end], 1)
        loss = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=labels).loss
        loss.backward()
        steps.step()
        steps.zero_grad()
    return model.eval()


def main() -> None:
    """Train, export and record."""
    model = train()
    HERE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        main_export(folder, Path(folder) / "onnx", task="text2text-generation-with-past")
        for name in (*KEPT, "decoder_with_past_model.onnx"):
            shutil.copy(Path(folder) / "onnx" / name, HERE / name)
    given = model.generation_config.to_diff_dict()
    recorded = []
    for settings in SETTINGS:
        most = {} if {"max_length", "max_new_tokens"} & set(settings) else {"max_new_tokens": 20}
        used = {**given, **most, **settings}
        texts = []
        for number in range(PROMPTS):
            ids = torch.tensor([prompt(number)])
            made = model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                generation_config=GenerationConfig(**used),
            )
            texts.append(made[0].tolist())
        recorded.append({"settings": used, "texts": texts})
    TEXTS.write_text("\n".join(["[", ",\n".join(map(json.dumps, recorded)), "]", ""]))


if __name__ == "__main__":
    main()

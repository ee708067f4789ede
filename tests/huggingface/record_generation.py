"""Write `encoder_decoders/marian/` and `t5-drawn/`: small models with a cache, and their texts.

The first learns for a minute to write another word for each word, so that its texts differ in their
ends. The second has drawn weights, so that no token is likely, and each rule tells.
`generation.json` has tokens of transformers' `generate` by several settings, and
`translations.json` texts of its pipeline. Run in an environment with PyTorch, from the root of the
repository:

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
from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import WordLevel
from transformers import (
    GenerationConfig,
    MarianConfig,
    MarianMTModel,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
    pipeline,
)

HERE = Path(__file__).parent / "encoder_decoders"
TEXTS = HERE / "generation.json"
TRANSLATIONS = HERE / "translations.json"
KEPT = (
    "config.json",
    "generation_config.json",
    "encoder_model.onnx",
    "decoder_model.onnx",
    "decoder_with_past_model.onnx",
)
MERGED = "decoder_model_merged.onnx"
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
    torch.set_num_threads(1)
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
            init_std=0.1,
            scale_embedding=True,
            dropout=0.0,
        )
    )
    steps = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for number in range(900):
        length = 3 + number % 6
        words = torch.randint(1, WORDS + 1, (64, length))
        end = torch.full((64, 1), END)
        ids = torch.cat([words, end], 1)
        keep = torch.rand(64, length) > 0.1  # Some words are read as others.
        said = torch.where(keep, 1 + (words * 7) % WORDS, torch.randint(1, WORDS + 1, (64, length)))
        labels = torch.cat([said, end], 1)
        loss = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=labels).loss
        loss.backward()
        steps.step()
        steps.zero_grad()
    return model.eval()


NAMES = (
    *("the", "river", "runs", "slowly", "past", "old", "stone", "houses", ",", "and", "children"),
    *("throw", "bread", "to", "five", "white", "ducks", "under", "a", "bridge", ".", "who", "are"),
    "you",
)
SENTENCES = (
    "The river runs slowly.",
    "who are you",
    "five white ducks, and children",
    "OLD stone",
    "a bridge under you . the bread",
    "children throw bread to the river, slowly.",
    "houses houses houses",
    "are a dragon ducks",
)


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer of words, in lower case."""
    names = ["</s>", *dict.fromkeys(NAMES)]
    names += [f"word{number}" for number in range(len(names), PAD)]
    words = {name: number for number, name in enumerate([*names[:PAD], "<pad>"])}
    tokenizer = Tokenizer(WordLevel(words, unk_token="<pad>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", END)]
    )
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="</s>",
        pad_token="<pad>",
        clean_up_tokenization_spaces=True,
    )


def draw() -> T5ForConditionalGeneration:
    """Return a T5 with drawn weights."""
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=WORDS + 8,
        d_model=16,
        d_kv=8,
        d_ff=32,
        num_layers=2,
        num_heads=2,
        decoder_start_token_id=WORDS + 7,
        eos_token_id=END,
        pad_token_id=WORDS + 7,
    )
    model = T5ForConditionalGeneration(config)
    with torch.no_grad():
        for value in model.parameters():
            value.mul_(3.0 if value.dim() > 1 else 1.0)
    return model.eval()


def record(name: str, model: Any) -> list[dict[str, Any]]:
    """Export a model; return its settings and texts."""
    (HERE / name).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        main_export(folder, Path(folder) / "onnx", task="text2text-generation-with-past")
        for file in (*KEPT, *([MERGED] if name == "marian" else ())):
            shutil.copy(Path(folder) / "onnx" / file, HERE / name / file)
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
        recorded.append({"model": name, "settings": used, "texts": texts})
    return recorded


def main() -> None:
    """Train, export and record."""
    model, tokenizer = train(), make_tokenizer()
    recorded = record("marian", model) + record("t5-drawn", draw())
    TEXTS.write_text("\n".join(["[", ",\n".join(map(json.dumps, recorded)), "]", ""]))
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(Path(folder) / name, HERE / "marian" / name)
    write = pipeline("text2text-generation", model=model, tokenizer=tokenizer)
    made = {
        text: write(text, num_beams=3, max_new_tokens=20)[0]["generated_text"] for text in SENTENCES
    }
    TRANSLATIONS.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()

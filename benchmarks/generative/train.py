"""Train a small language model, or draw a larger one: `python train.py FOLDER KIND`, in the peers'
environment.

The text is the documentation inside the installed packages: the docstrings of PyTorch and of
Python's own library. Each paragraph counts once. Every twentieth file is held out.
"""

import ast
import hashlib
import json
import math
import os
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM

VOCABULARY = 4096
CONTEXT = 512
STEPS, BATCH, LENGTH, RATE = 600, 8, 256, 3e-3
HELD_OUT_EVERY = 20
PROMPTS = 160
PROMPT_TOKENS, ANSWER_TOKENS = 64, 64
LEAST_LETTERS = 40
DRAWN_STD = 0.04
"""Of the drawn weights; with transformers' 0.02 all tokens are nearly as likely."""

TRAINED = LlamaConfig(
    vocab_size=VOCABULARY,
    hidden_size=256,
    intermediate_size=768,
    num_hidden_layers=4,
    num_attention_heads=8,
    num_key_value_heads=4,
    max_position_embeddings=CONTEXT,
    tie_word_embeddings=True,
    bos_token_id=0,
    eos_token_id=0,
)
DRAWN = LlamaConfig(  # SmolLM-135M
    vocab_size=49152,
    hidden_size=576,
    intermediate_size=1536,
    num_hidden_layers=30,
    num_attention_heads=9,
    num_key_value_heads=3,
    max_position_embeddings=2048,
    tie_word_embeddings=True,
    initializer_range=DRAWN_STD,
    bos_token_id=0,
    eos_token_id=0,
)


def read_texts() -> tuple[list[str], list[str]]:
    """Return the texts to train with, and the held-out texts."""
    roots = [Path(sysconfig.get_path("purelib")) / "torch", Path(sysconfig.get_path("stdlib"))]
    seen: set[bytes] = set()
    texts: tuple[list[str], list[str]] = [], []
    for root in roots:
        for file in sorted(root.rglob("*.py")):
            if root is roots[-1] and "site-packages" in file.parts:
                continue
            paragraphs = [one for text in _documentation(file) for one in _paragraphs(text)]
            new = []
            for paragraph in paragraphs:
                digest = hashlib.sha256("".join(paragraph.split()).encode()).digest()
                if digest not in seen:
                    seen.add(digest)
                    new.append(paragraph)
            name = str(file.relative_to(root)).encode()
            is_held_out = hashlib.sha256(name).digest()[0] % HELD_OUT_EVERY == 0
            if new:
                texts[is_held_out].append("\n\n".join(new))
    return texts


def _documentation(file: Path) -> Iterator[str]:
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield text


def _paragraphs(text: str) -> Iterator[str]:
    for paragraph in text.split("\n\n"):
        lines = [line.strip() for line in paragraph.splitlines()]
        joined = " ".join(line for line in lines if line)
        if len(joined) >= LEAST_LETTERS:
            yield joined


def train_tokenizer(texts: list[str], folder: Path) -> Tokenizer:
    """Train and write a byte-level BPE tokenizer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<|end|>"],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|end|>",
        "bos_token": "<|end|>",
        "model_max_length": CONTEXT,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return tokenizer


def join_tokens(tokenizer: Tokenizer, texts: list[str]) -> np.ndarray:
    """Return the tokens of all texts, with an end token before each."""
    tokens: list[int] = []
    for encoded in tokenizer.encode_batch(texts):
        tokens += [0, *encoded.ids]
    return np.array(tokens, np.int64)


def train(folder: Path) -> None:
    """Train the small model; write its folder, prompts with answers, and held-out windows."""
    begun = time.process_time()
    fitted, held_out = read_texts()
    tokenizer = train_tokenizer(fitted, folder)
    tokens, others = join_tokens(tokenizer, fitted), join_tokens(tokenizer, held_out)
    print(f"{len(tokens):,} tokens to train with, {len(others):,} held out", flush=True)
    _write_samples(tokenizer, others, folder)
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    model = LlamaForCausalLM(TRAINED)
    print(f"{sum(weight.numel() for weight in model.parameters()):,} parameters", flush=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, RATE, total_steps=STEPS, pct_start=0.05, final_div_factor=100
    )
    for step in range(STEPS):
        starts = rng.integers(0, len(tokens) - LENGTH - 1, BATCH)
        batch = torch.from_numpy(np.stack([tokens[start : start + LENGTH] for start in starts]))
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 50 == 0 or step == STEPS - 1:
            used = time.process_time() - begun
            print(f"step {step}: perplexity {math.exp(loss.item()):.1f}, {used:.0f} s", flush=True)
    model.save_pretrained(folder)


def _write_samples(tokenizer: Tokenizer, others: np.ndarray, folder: Path) -> None:
    """Write prompts with answers from the first half of the held-out text, windows of the rest."""
    half, size = len(others) // 2, PROMPT_TOKENS + ANSWER_TOKENS
    lines = []
    for start in np.linspace(0, half - size, PROMPTS).astype(int):
        window = others[start : start + size]
        prompt, answer = window[:PROMPT_TOKENS], window[PROMPT_TOKENS:]
        texts = (tokenizer.decode(part.tolist()) for part in (prompt, answer))
        lines.append(json.dumps(dict(zip(("prompt", "answer"), texts, strict=True))))
    (folder / "prompts.jsonl").write_text("\n".join(lines) + "\n")
    rest = others[half:]
    np.save(folder / "held_out.npy", rest[: len(rest) // LENGTH * LENGTH].reshape(-1, LENGTH))


def draw(folder: Path, tokenizer: Path) -> None:
    """Write a model of random weights, with the small model's tokenizer."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(DRAWN)
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "prompts.jsonl"):
        (folder / name).write_bytes((tokenizer / name).read_bytes())
    rng = np.random.default_rng(0)
    np.save(folder / "held_out.npy", rng.integers(0, VOCABULARY, (8, LENGTH)))


def main() -> None:
    """Write the folder of a model."""
    folder, kind = Path(sys.argv[1]), sys.argv[2]
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(2)
    if kind == "trained":
        train(folder)
    else:
        draw(folder, Path(sys.argv[3]))


if __name__ == "__main__":
    main()

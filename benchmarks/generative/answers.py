"""Roundings of small models whose answers are right or wrong: `python answers.py FILE`.

Runs in the environment that trains. Three models are trained, each on a task with one right answer
for each prompt. Weights are then rounded in 72 ways. Each rounding is measured as a build does, by
the answers' tokens, and by the share of right answers.
"""

import itertools
import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

PROMPTS, BATCH, RATE = 4000, 128, 2e-3
BITS, BLOCKS, SHARES = (2, 3, 4, 5, 6, 8), (16, 32, 64, 128), (0.25, 0.5, 1.0)
SIZES = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
}

Draw = Callable[[np.random.Generator, int], tuple[np.ndarray, np.ndarray]]


def draw_reversed(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return words of six letters, and the same backwards."""
    words = rng.integers(0, 26, (count, 6))
    return words, words[:, ::-1]


def draw_sums(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return pairs of numbers of two digits, and their sums, digits from the last."""
    digits = rng.integers(0, 10, (count, 4))
    total = digits[:, 0] * 10 + digits[:, 1] + digits[:, 2] * 10 + digits[:, 3]
    return digits, np.stack([total % 10, total // 10 % 10, total // 100], axis=1)


_FACTS = np.random.default_rng(7).integers(0, 30, (600, 2))


def draw_facts(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return names of three letters that stand for 600 facts, and the two tokens of each fact."""
    facts = rng.integers(0, len(_FACTS), count)
    names = np.stack([facts // 100 + 10, facts // 10 % 10, facts % 10], axis=1)
    return names, _FACTS[facts]


TASKS: dict[str, tuple[type, type, Draw, int]] = {
    "Mistral, words backwards": (MistralConfig, MistralForCausalLM, draw_reversed, 700),
    "Qwen3, sums": (Qwen3Config, Qwen3ForCausalLM, draw_sums, 900),
    "Gemma 2, 600 facts": (Gemma2Config, Gemma2ForCausalLM, draw_facts, 900),
}
"""By name: architecture, samples, and steps of training."""


def train(config: type, kind: type, draw: Draw, steps: int) -> torch.nn.Module:
    """Return a trained model."""
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    model = kind(config(vocab_size=64, sliding_window=64, **SIZES))
    model.config._attn_implementation = "eager"
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps)
    for _ in range(steps):
        tokens, labels = _batch(draw, rng, BATCH)
        loss = model(input_ids=tokens, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
    return model.eval()


def _batch(draw: Draw, rng: np.random.Generator, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    prompts, answers = draw(rng, count)
    tokens = torch.from_numpy(
        np.concatenate([prompts, np.full((count, 1), 63), answers], axis=1).astype(np.int64)
    )
    labels = tokens.clone()
    labels[:, : prompts.shape[1] + 1] = -100
    return tokens, labels


def predict(
    model: torch.nn.Module, tokens: torch.Tensor, labels: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log probabilities at the answers' tokens, and whether each answer is right."""
    count = int((labels[0] >= 0).sum())
    with torch.no_grad():
        logits = torch.cat([model(input_ids=part).logits for part in tokens.split(500)])
    shares = torch.log_softmax(logits[:, -count - 1 : -1].double(), dim=-1)
    return shares, (shares.argmax(-1) == labels[:, -count:]).all(dim=1)


def round_weights(weight: torch.Tensor, bits: int, block: int) -> torch.Tensor:
    """Return a matrix rounded in blocks along its rows, with a scale and a zero point each."""
    parts = weight.reshape(-1, min(block, weight.shape[1]))
    low, high = (f(parts, dim=1, keepdim=True) for f in (torch.amin, torch.amax))
    scale = ((high - low) / (2**bits - 1)).clamp_min(1e-12)
    return (((parts - low) / scale).round() * scale + low).reshape(weight.shape)


def measure(name: str) -> dict[str, object]:
    """Train a model, and return its share of right answers and the measures of its roundings."""
    config, kind, draw, steps = TASKS[name]
    model = train(config, kind, draw, steps)
    tokens, labels = _batch(draw, np.random.default_rng(1), PROMPTS)
    expected, right = predict(model, tokens, labels)
    answer = tokens[:, -expected.shape[1] :, None]
    matrices = [weight for weight in dict(model.named_parameters()).values() if weight.dim() == 2]
    kept = [weight.detach().clone() for weight in matrices]
    rng = np.random.default_rng(2)
    roundings = []
    for bits, block, share in itertools.product(BITS, BLOCKS, SHARES):
        chosen = rng.permutation(len(matrices))[: round(share * len(matrices))]
        with torch.no_grad():
            for number in chosen:
                matrices[number].copy_(round_weights(kept[number], bits, block))
        got, got_right = predict(model, tokens, labels)
        with torch.no_grad():
            for weight, values in zip(matrices, kept, strict=True):
                weight.copy_(values)
        surprisal = (expected - got).gather(-1, answer).mean()
        divergence = (expected.exp() * (expected - got)).sum(-1).mean()
        roundings.append(
            {
                "bits": bits,
                "block": block,
                "share": share,
                "ratio": float(surprisal.exp()),
                "divergence": float(divergence),
                "agreement": float((got.argmax(-1) == expected.argmax(-1)).double().mean()),
                "right": float(got_right.double().mean()),
            }
        )
    return {"name": name, "right": float(right.double().mean()), "roundings": roundings}


def main() -> None:
    """Write the measures of all models."""
    torch.set_num_threads(2)
    found = []
    for name in TASKS:
        found.append(measure(name))
        print(name, found[-1]["right"], flush=True)
    Path(sys.argv[1]).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()

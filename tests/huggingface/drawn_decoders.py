"""Small decoders of each architecture with drawn weights, written without PyTorch.

`record_decoders.py` records the logits that transformers computes with the same folders.
"""

import json
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

VOCABULARY = 72
TOKENS = [[(7 * place + place * place) % VOCABULARY for place in range(24)]]
"""Longer than the windows below."""

_SIZES = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
_GEMMA = {"hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 24}


def _config(architecture: str, **settings: object) -> dict[str, Any]:
    kind = architecture.removesuffix("ForCausalLM").lower()
    named = {"architectures": [architecture], "model_type": kind, "hidden_act": "silu"}
    return named | _SIZES | settings


CONFIGS: Mapping[str, dict[str, Any]] = {
    "llama": _config("LlamaForCausalLM", tie_word_embeddings=False, attention_bias=True),
    "llama3": _config(
        "LlamaForCausalLM",
        tie_word_embeddings=True,
        rope_theta=500000.0,
        rope_scaling={
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    ),
    "mistral": _config("MistralForCausalLM", tie_word_embeddings=False, sliding_window=8),
    "qwen2": _config("Qwen2ForCausalLM", tie_word_embeddings=True, rope_theta=1000000.0),
    "qwen2_yarn": _config(
        "Qwen2ForCausalLM",
        tie_word_embeddings=True,
        rope_scaling={
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 16,
        },
    ),
    "qwen3": _config("Qwen3ForCausalLM", tie_word_embeddings=True, attention_bias=False),
    "phi3": _config("Phi3ForCausalLM", tie_word_embeddings=False, hidden_size=64, sliding_window=9),
    "phi3_longrope": _config(
        "Phi3ForCausalLM",
        tie_word_embeddings=False,
        hidden_size=64,
        partial_rotary_factor=1.0,
        original_max_position_embeddings=32,
        rope_scaling={
            "type": "longrope",
            "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7],
            "long_factor": [2.0] * 8,
        },
    ),
    "gemma": _config("GemmaForCausalLM", tie_word_embeddings=True, hidden_act="gelu"),
    "gemma2": _config(
        "Gemma2ForCausalLM",
        tie_word_embeddings=True,
        sliding_window=8,
        attn_logit_softcapping=5.0,
        final_logit_softcapping=3.0,
        **_GEMMA,
    ),
    "gemma3": _config(
        "Gemma3ForCausalLM",
        model_type="gemma3_text",
        tie_word_embeddings=True,
        sliding_window=8,
        layer_types=["sliding_attention", "full_attention"],
        rope_theta=1000000.0,
        rope_local_base_freq=10000.0,
        **_GEMMA,
    ),
}


def write_folder(folder: Path, name: str, *, dtype: str = "BF16", **settings: object) -> Path:
    """Write a folder with configuration, weights and a tokenizer of single letters.

    Args:
        folder: The folder; must not exist.
        name: Key of `CONFIGS`.
        dtype: Type of the weights: BF16, F16 or F32.
        settings: Changes of the configuration; the weights follow.
    """
    config = CONFIGS[name] | settings
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    rng = np.random.default_rng(0)
    tensors = {key: _draw(rng, key, shape) for key, shape in _shapes(config)}
    write_safetensors(folder / "model.safetensors", tensors, dtype=dtype)
    write_tokenizer(folder, VOCABULARY)
    return folder


def write_tokenizer(folder: Path, count: int) -> None:
    """Write a tokenizer whose tokens are words `t0`, `t1` ….

    Args:
        folder: Where to.
        count: Number of tokens.
    """
    vocab = {f"t{number}": number for number in range(count)}
    model = {"type": "WordLevel", "vocab": vocab, "unk_token": "t0"}
    content = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "Whitespace"},
        "model": model,
    }
    (folder / "tokenizer.json").write_text(json.dumps(content))


def write_safetensors(
    path: Path, tensors: Mapping[str, np.ndarray[Any, Any]], *, dtype: str = "F32"
) -> None:
    """Write float32 arrays as a safetensors file, converted to a type."""
    header, contents, start = {}, [], 0
    for name, values in tensors.items():
        content = _encode(values, dtype)
        header[name] = {
            "dtype": dtype,
            "shape": list(values.shape),
            "data_offsets": [start, start + len(content)],
        }
        contents.append(content)
        start += len(content)
    encoded = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(encoded)) + encoded + b"".join(contents))


def _encode(values: np.ndarray[Any, Any], dtype: str) -> bytes:
    if dtype == "BF16":
        return (values.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()
    return values.astype({"F16": "<f2", "F32": "<f4"}[dtype]).tobytes()


def _draw(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    scale = 0.15 if "norm" in name or name.endswith("bias") else 0.25
    values = rng.standard_normal(shape) * scale
    values = (values + 1.0 if "norm" in name else values).astype(np.float32)
    return (values.view(np.uint32) & 0xFFFF0000).view(np.float32)  # exact in each type of weights


def _shapes(config: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, size, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    kind = config["model_type"]
    yield "model.embed_tokens.weight", (config["vocab_size"], hidden)
    yield "model.norm.weight", (hidden,)
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", (config["vocab_size"], hidden)
    norms = ["input", "post_attention"]
    if kind in ("gemma2", "gemma3_text"):
        norms += ["pre_feedforward", "post_feedforward"]
    for layer in range(config["num_hidden_layers"]):
        path = f"model.layers.{layer}"
        yield from ((f"{path}.{norm}_layernorm.weight", (hidden,)) for norm in norms)
        if kind == "phi3":
            yield f"{path}.self_attn.qkv_proj.weight", (queries + 2 * keys, hidden)
            yield f"{path}.mlp.gate_up_proj.weight", (2 * size, hidden)
        else:
            for part, rows in (("q", queries), ("k", keys), ("v", keys)):
                yield f"{path}.self_attn.{part}_proj.weight", (rows, hidden)
                if kind == "qwen2" or config.get("attention_bias"):
                    yield f"{path}.self_attn.{part}_proj.bias", (rows,)
            if config.get("attention_bias"):
                yield f"{path}.self_attn.o_proj.bias", (hidden,)
            for part in ("gate", "up"):
                yield f"{path}.mlp.{part}_proj.weight", (size, hidden)
        if kind in ("qwen3", "gemma3_text"):
            yield f"{path}.self_attn.q_norm.weight", (head,)
            yield f"{path}.self_attn.k_norm.weight", (head,)
        yield f"{path}.self_attn.o_proj.weight", (hidden, queries)
        yield f"{path}.mlp.down_proj.weight", (hidden, size)

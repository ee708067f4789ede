"""Accuracy of a model on held-out windows, next to the float model."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import onnx
from onnx import numpy_helper

from benchmarks.generative.contestants import HERE, Contestant
from benchmarks.packager.environments import prepare
from edgepack.packager.graph.model_files import cpu_session, load_model, quiet_options, save_model
from edgepack.tasks.arrays import Floats, Singles

WINDOWS = 48
_HEADS, _HEAD_SIZE = 4, 32
"""Of the cache of the trained model."""


class Quality(msgspec.Struct, frozen=True, kw_only=True):
    """Accuracy of a model.

    Attributes:
        perplexity: Of held-out tokens.
        divergence: Mean KL from the float model, nats.
        agreement: Share of tokens whose likeliest successor is the float model's.
    """

    perplexity: float
    divergence: float
    agreement: float


def log_shares(model: Path, windows: np.ndarray) -> Iterator[Singles]:
    """Yield the log probabilities of each window's next tokens, float32 (tokens, vocabulary)."""
    session = cpu_session(model, quiet_options(threads=2))
    for window in windows:
        ids = window[None].astype(np.int64)
        places = np.arange(len(window))[None]
        given = {"input_ids": ids, "attention_mask": np.ones_like(ids), "position_ids": places}
        feeds = {
            one.name: given[one.name]
            if one.name in given
            else np.zeros((1, _HEADS, 0, _HEAD_SIZE), np.float32)
            for one in session.get_inputs()
        }
        (logits,) = session.run(["logits"], feeds)
        yield _log_softmax(logits[0].astype(np.float32))


def measure_quality(model: Path, float_model: Path, windows: np.ndarray) -> Quality:
    """Compare a model with the float model on windows of tokens, int64 (windows, tokens)."""
    surprisals: list[Floats] = []
    divergences: list[Floats] = []
    same: list[np.ndarray] = []
    both = zip(log_shares(model, windows), log_shares(float_model, windows), windows, strict=True)
    for got, expected, window in both:
        surprisals.append(-got[np.arange(len(window) - 1), window[1:]])
        divergences.append((np.exp(expected) * (expected - got)).sum(axis=-1))
        same.append(got.argmax(axis=-1) == expected.argmax(axis=-1))
    return Quality(
        perplexity=float(np.exp(np.mean(np.concatenate(surprisals)))),
        divergence=float(np.mean(np.concatenate(divergences))),
        agreement=float(np.mean(np.concatenate(same))),
    )


def restore_llama(contestant: Contestant, folder: Path, output: Path, float_model: Path) -> Path:
    """Write the weights of a GGUF file into the float model's graph, and return its file.

    llama.cpp's rounding of activations is left out, which favours llama.cpp.
    """
    target = output / "restored.onnx"
    if target.exists():
        return target
    form = contestant.name.rpartition(" ")[2]
    arguments = [str(folder), str(output / "again.gguf"), form, str(output / "weights.npz")]
    command = [str(prepare("llamacpp").python), str(HERE / "write_gguf.py"), *arguments]
    subprocess.run(command, check=True)
    model = load_model(float_model)
    with np.load(output / "weights.npz") as weights:
        for tensor in model.graph.initializer:
            values = _find(tensor.name, weights)
            if values is not None:
                tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    save_model(model, target)
    return target


def _find(name: str, weights: "np.lib.npyio.NpzFile") -> Singles | None:
    """Return the weights of a matrix of edgepack's graph from those of a Hugging Face folder."""
    if name in weights:
        return np.asarray(weights[name])
    if not name.endswith(".MatMul.weight"):
        return None
    layer, _, part = name.removesuffix(".MatMul.weight").rpartition(".")
    own = f"{layer.replace('.attn', '.self_attn')}."
    parts = [f"{one}_proj" for one in "qkv"] if part == "qkv_proj" else [part]
    stacked = np.concatenate([weights[f"{own}{one}.weight"] for one in parts])
    return np.ascontiguousarray(stacked.T)


def graph_of(path: Path) -> onnx.GraphProto:
    """Return the graph of a model's file, without its weights."""
    return onnx.load(path, load_external_data=False).graph


def _log_softmax(logits: Singles) -> Singles:
    lowered = logits - logits.max(axis=-1, keepdims=True)
    return np.asarray(lowered - np.log(np.exp(lowered).sum(axis=-1, keepdims=True)))

"""Adapters in decoders of each architecture: a branch adds what merged weights add."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from edgepack.packager.graph.adapter_branches import add_branches, fill_branches
from edgepack.packager.graph.model_files import save_model
from edgepack.packager.progress import silent
from edgepack.packager.source.adapters import read_adapter_folder
from edgepack.packager.source.decoders.build import open_decoder
from edgepack.packager.source.decoders.weights import open_weights
from edgepack.packager.source.model import SourceModel
from tests.huggingface.drawn_decoders import CONFIGS, TOKENS, write_folder, write_safetensors

EXPORTS = Path(__file__).parents[2] / "huggingface" / "exports"
RANK, ALPHA = 3, 12.0
FEWER, PLAIN = 2, 5.0
"""Rank and alpha of the modules that `rank_pattern` and `alpha_pattern` name."""


def compute(model: Any, file: Path) -> np.ndarray[Any, Any]:
    file.parent.mkdir()
    save_model(model, file)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(file, options)
    tokens = np.array(TOKENS)
    feeds: dict[str, Any] = {"input_ids": tokens, "attention_mask": np.ones_like(tokens)}
    feeds["position_ids"] = np.arange(tokens.size)[None]
    for spec in session.get_inputs():
        if spec.name not in feeds:
            feeds[spec.name] = np.zeros((1, spec.shape[1], 0, spec.shape[3]), np.float32)
    known = {spec.name for spec in session.get_inputs()}
    feeds = {key: value for key, value in feeds.items() if key in known}
    logits: np.ndarray[Any, Any] = session.run(["logits"], feeds)[0]
    return logits


def open_folder(folder: Path, work: Path) -> SourceModel:
    return open_decoder(folder, work, silent)


def write_base(folder: Path, name: str) -> Path:
    """Write a base of an architecture; the weights of GPT-2 are those of its export."""
    if name != "gpt2":
        return write_folder(folder, name, dtype="F32")
    shutil.copytree(EXPORTS / name, folder, ignore=lambda *_: ["model.onnx"])
    stored = onnx.load(EXPORTS / name / "model.onnx").graph.initializer
    arrays = {one.name: numpy_helper.to_array(one) for one in stored}
    own = {key: value for key, value in arrays.items() if key.startswith("transformer.")}
    write_safetensors(folder / "model.safetensors", own)
    return folder


@pytest.mark.parametrize("name", [*CONFIGS, "gpt2"])
def test_branch_adds_what_merged_weights_add(tmp_path: Path, name: str) -> None:
    base = write_base(tmp_path / "base", name)
    weights, rng = open_weights(base), np.random.default_rng(1)
    adapter: dict[str, np.ndarray[Any, Any]] = {}
    merged: dict[str, np.ndarray[Any, Any]] = {}
    for tensor in weights:
        merged[tensor] = weights.read(tensor)
        is_left = ".layers.1.mlp.up" in tensor  # An adapter may leave modules of a layer out.
        is_inner = ".layers." in tensor or ".h." in tensor
        if merged[tensor].ndim != 2 or not is_inner or is_left:
            continue
        is_turned = name == "gpt2"  # Its weights are (inputs, outputs).
        path = tensor.removesuffix(".weight")
        is_named = path.endswith("o_proj")
        rank, alpha = (FEWER, PLAIN) if is_named else (RANK, ALPHA)
        rows, columns = merged[tensor].shape[:: -1 if is_turned else 1]
        first = rng.standard_normal((rank, columns)).astype(np.float32) * 0.1
        second = rng.standard_normal((rows, rank)).astype(np.float32) * 0.1
        adapter[f"base_model.model.{path}.lora_A.weight"] = first
        adapter[f"base_model.model.{path}.lora_B.weight"] = second
        added = np.float32(alpha / rank) * (second @ first)
        merged[tensor] = merged[tensor] + (added.T if is_turned else added)
    folder = tmp_path / "adapter"
    folder.mkdir()
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA}
    config |= {"rank_pattern": {"o_proj": FEWER}, "alpha_pattern": {"self_attn.o_proj": PLAIN}}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    write_safetensors(folder / "adapter_model.safetensors", adapter)
    whole = write_base(tmp_path / "merged", name)
    write_safetensors(whole / "model.safetensors", merged)

    source = open_folder(base, tmp_path / "built")
    assert source.texts is not None
    places = source.texts.places
    assert places is not None
    tensors = read_adapter_folder(folder, places, name).tensors
    plain = compute(source.model, tmp_path / "plain" / "model.onnx")
    branched = add_branches(source.model, places, source.model.graph)
    empty = compute(branched, tmp_path / "empty" / "model.onnx")
    assert np.abs(plain - empty).max() < 1e-5, "an adapter that is not there adds nothing"
    found = compute(fill_branches(branched, places, tensors), tmp_path / "filled" / "model.onnx")
    wanted = compute(
        open_folder(whole, tmp_path / "whole").model, tmp_path / "wanted" / "model.onnx"
    )
    assert np.abs(wanted - plain).max() > 0.1
    assert np.abs(wanted - found).max() < 1e-3

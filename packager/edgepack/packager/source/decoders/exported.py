"""Weights inside an exported graph: the decoder is built again from these, with fused attention.

PyTorch's exporter keeps names of parameters, but stores equal parameters once, and has other names
for transposed copies. The path of a node is the path of its module, so that its reader tells what a
tensor is. Whether the names are right is proven: the graph that is built must give the logits of
the export.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from edgepack.errors import BuildError
from edgepack.packager.graph import stored_tensors
from edgepack.packager.graph.model_files import RUNTIME_ERRORS, load_model, open_on_cpu
from edgepack.packager.source.decoders.shape import DecoderShape
from edgepack.packager.source.decoders.weights import (
    ArrayWeights,
    Weights,
    open_weights,
    rename_gpt2,
)
from edgepack.tasks.arrays import Floats, Tensor

MODEL = "model.onnx"
MOST_DIFFERENCE = 0.005
"""Of the logits' standard deviation. Right graphs of small decoders differ by less than 1e-4; with
a layer's gate and up exchanged, by more than 0.1."""

_TOKENS = 24
_BEYOND = 8
"""Tokens more than a window of attention has, so that the window shows."""
_MOST_TOKENS = 600

_RUN_ERRORS: tuple[type[Exception], ...] = (*RUNTIME_ERRORS, ValueError)
_NODE = re.compile(r"/(?P<module>.+)/[A-Za-z]+(_\d+)?")
_FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16)


def read_exported(model: Path, shape: DecoderShape) -> Weights:
    """Return the weights of an exported decoder, by the names of its safetensors.

    Args:
        model: The graph, of Optimum.
        shape: The decoder's shape.
    """
    graph = load_model(model).graph
    tensors = {one.name: one for one in graph.initializer if one.data_type in _FLOATS}
    for node in graph.node:
        if node.op_type == "Identity" and node.input[0] in tensors:
            tensors[node.output[0]] = tensors[node.input[0]]
    found: dict[str, Tensor] = {
        name: stored_tensors.values(tensor)
        for name, tensor in tensors.items()
        if name.endswith((".weight", ".bias")) and len(tensor.dims) in (1, 2)
    }
    for node in graph.node:
        match = _NODE.fullmatch(node.name)
        own = [stored_tensors.values(tensors[name]) for name in node.input if name in tensors]
        if match is None or not own:
            continue
        module, values = match["module"].replace("/", "."), own[0]
        if node.op_type == "MatMul" and values.ndim == 2:
            found.setdefault(f"{module}.weight", values.T)
        elif node.op_type == "Mul" and values.ndim == 1 and values.size > 1:
            # A norm's weight; Gemma's has its offset.
            scale = values.astype(np.float32) - np.float32(shape.family.norm_offset)
            found.setdefault(f"{module}.weight", scale)
        elif node.op_type in ("Gemm", "LayerNormalization") and len(own) == 2:
            found.setdefault(f"{module}.weight", values)
            found.setdefault(f"{module}.bias", own[1])
        elif node.op_type == "Add" and f"{module}.weight" in found and values.ndim == 1:
            found.setdefault(f"{module}.bias", values)
    return ArrayWeights(model.parent, found)


def read_weights(folder: Path, shape: DecoderShape) -> Weights:
    """Return the weights of a folder, of its safetensors or of its exported graph.

    Raises:
        BuildError: The folder has neither, or a file is malformed.
    """
    model = folder / MODEL
    weights = read_exported(model, shape) if model.is_file() else open_weights(folder)
    return rename_gpt2(weights) if shape.family.has_positions else weights


def compare_logits(export: Path, built: Path, shape: DecoderShape) -> float:
    """Return the largest difference of two decoders' logits, of their standard deviation.

    Both read a text at once, and then a token more over the cache.

    Raises:
        BuildError: A graph does not run.
    """
    length = min(max(_TOKENS, shape.window + _BEYOND), _MOST_TOKENS, shape.context - 1)
    tokens = (np.arange(1, 2 + length) * 7 % shape.vocabulary)[None]
    try:
        said = [_run(path, tokens, shape) for path in (export, built)]
    except _RUN_ERRORS as error:
        raise BuildError(f"a graph does not run: {error}", found_in=str(export)) from error
    first, second = said
    return float(np.abs(first - second).max() / first.std())


def _run(path: Path, tokens: Tensor, shape: DecoderShape) -> Floats:
    session = open_on_cpu(path, threads=1)
    inputs = {one.name: one for one in session.get_inputs()}
    outputs = [one.name for one in session.get_outputs()]
    sizes = (1, shape.kv_heads, 0, shape.head_size)
    cache: Mapping[str, Any] = {
        name: np.zeros(sizes, np.float16 if one.type == "tensor(float16)" else np.float32)
        for name, one in inputs.items()
        if name.startswith("past_key_values.")
    }
    logits = []
    for start, stop in ((0, tokens.shape[1] - 1), (tokens.shape[1] - 1, tokens.shape[1])):
        plain = {
            "input_ids": tokens[:, start:stop],
            "attention_mask": np.ones((1, stop), np.int64),
            "position_ids": np.arange(start, stop)[None],
        }
        feeds = {name: value for name, value in plain.items() if name in inputs}
        said = dict(zip(outputs, session.run(outputs, {**feeds, **cache}), strict=True))
        cache = {name: said[name.replace("past_key_values", "present")] for name in cache}
        logits.append(said["logits"][0].astype(np.float64))
    return np.concatenate(logits)

"""Merged decoders of Optimum, `decoder_model_merged.onnx`, as the two decoders they were made of.

The graph is a single If with the condition `use_cache_branch`: its else branch begins a text, its
then branch continues a text from the cache. Both read the same weights.
"""

from pathlib import Path
from typing import NamedTuple

import onnx
from onnx import helper

from edgepack.errors import BuildError
from edgepack.packager.graph.edits import drop_unread, drop_unused_nodes, refill
from edgepack.packager.graph.model_files import attach_weights, save_model
from edgepack.packager.graph.queries import attribute, used_names
from edgepack.packager.graph.stored_tensors import external_files
from edgepack.packager.source.model import read_graph

MERGED = "decoder_model_merged.onnx"
_CONDITION = "use_cache_branch"
_PAST = "past_key_values."


class SplitDecoder(NamedTuple):
    """The two decoders of a merged decoder.

    Attributes:
        first: File of the decoder that begins a text.
        with_cache: File of the decoder that continues a text.
    """

    first: Path
    with_cache: Path


def split_merged(path: Path, folder: Path) -> SplitDecoder:
    """Write the two branches of a merged decoder as models of their own.

    Args:
        path: The merged decoder.
        folder: Receives the two models; its files must stay as long as the models are used.

    Raises:
        BuildError: The file is no merged decoder, or its external data cannot be read.
        OSError: A file cannot be read or written.
    """
    model = read_graph(path)
    external_files(path, model)
    attach_weights(model, path.parent)
    nodes = list(model.graph.node)
    made = {name for one in nodes for name in one.output}
    is_merged = len(nodes) == 1 and nodes[0].op_type == "If" and nodes[0].input[0] == _CONDITION
    if not is_merged or not made.issuperset(one.name for one in model.graph.output):
        raise _rejection(path, f"the decoder is not a single If with the condition {_CONDITION}")
    split = SplitDecoder(folder / "decoder_model.onnx", folder / "decoder_with_past_model.onnx")
    for branch, file in zip(("else_branch", "then_branch"), split, strict=True):
        taken = _take_branch(model, nodes[0], branch)
        reads_cache = any(one.name.startswith(_PAST) for one in taken.graph.input)
        if reads_cache != (file == split.with_cache):
            has = "reads the" if reads_cache else "reads no"
            raise _rejection(path, f"the {branch} of the decoder {has} cache")
        save_model(taken, file)
    return split


def _rejection(path: Path, problem: str) -> BuildError:
    return BuildError(
        problem,
        found_in=str(path),
        remedy="export again with optimum-cli, and keep decoder_model.onnx and "
        "decoder_with_past_model.onnx",
    )


def _take_branch(model: onnx.ModelProto, node: onnx.NodeProto, name: str) -> onnx.ModelProto:
    """Return a branch as a model, without inputs that it does not read and constant outputs.

    The branch that continues a text returns constants in place of the encoder's cache.
    """
    body = attribute(node, name)
    constants = {one.output[0] for one in body.node if one.op_type == "Constant"}
    made = dict(zip(node.output, (one.name for one in body.output), strict=True))
    outputs = [one for one in model.graph.output if made[one.name] not in constants]
    ends = [
        helper.make_node("Identity", [made[one.name]], [one.name])
        for one in outputs
        if made[one.name] != one.name
    ]
    graph = helper.make_graph(
        [*body.node, *ends],
        name,
        list(model.graph.input),
        outputs,
        initializer=[*model.graph.initializer, *body.initializer],
        sparse_initializer=[*model.graph.sparse_initializer, *body.sparse_initializer],
    )
    drop_unused_nodes(graph)
    drop_unread(graph)
    read = used_names(graph)
    refill(graph.input, (one for one in graph.input if one.name in read))
    found = helper.make_model(
        graph, opset_imports=list(model.opset_import), functions=list(model.functions)
    )
    found.ir_version = model.ir_version
    return found

"""Pass `qnn_preprocess`: replacement of exported chains by operators of Qualcomm's HTP.

- `Erf` and its arithmetic become Gelu; `x * clip(x + 3, 0, 6) / 6` becomes HardSwish.
- `x / ReduceL2(x)`, with or without a Clip against zero and an Expand, becomes LpNormalization.
- Reshape, Transpose, Reshape that move blocks of pixels to channels or back become SpaceToDepth or
  DepthToSpace; the HTP cannot handle the tensors with six axes between them.

Layer normalization is left unchanged: in trials a LayerNormalization node fell to the CPU while its
decomposed form stayed on the HTP, so there is no general rule.
"""

from collections.abc import Mapping, Sequence

import onnx

from edgepack.packager.graph.node_chains import (
    Chain,
    as_one,
    find_chains,
    only_reader,
    producer,
    reduced_axes,
    scalar,
    shorten,
)
from edgepack.packager.graph.queries import GraphIndex, attribute
from edgepack.packager.graph.shape_inference import add_shapes
from edgepack.packager.passes.context import PassContext, PassResult
from edgepack.packager.passes.gelu import fuse_gelu, fuse_hard_swish
from edgepack.packager.profiles.pass_settings import QnnPreprocess

_SPACE_TO_DEPTH = (0, 3, 5, 1, 2, 4)
_DEPTH_TO_SPACE: Mapping[Sequence[int], str] = {
    (0, 3, 4, 1, 5, 2): "DCR",
    (0, 1, 4, 2, 5, 3): "CRD",
}
_MOST_EPSILON = 1e-6


def qnn_preprocess(
    model: onnx.ModelProto, settings: QnnPreprocess, context: PassContext
) -> PassResult:
    """Replace each chain by the HTP's operator.

    Args:
        model: The model, with shapes; changed in place.
        settings: The pass's settings (none).
        context: Its limits say whether the provider reads ONNX Runtime's own Gelu.

    Returns:
        The model, and notes of the replacements.
    """
    shapes = list(model.graph.value_info)
    notes = [fuse_gelu(model, context.limits), fuse_hard_swish(model)]
    for match, words in (
        (_match_normalization, "normalizations became LpNormalization"),
        (_match_pixel_move, "moves of pixels became SpaceToDepth or DepthToSpace"),
    ):
        chains = find_chains(model.graph, match)
        if chains:
            notes.append(f"{len(chains)} {words}.")
            shorten(model.graph, chains)
    add_shapes(model, shapes)
    return PassResult(model=model, notes=tuple(note for note in notes if note))


def _match_normalization(index: GraphIndex, node: onnx.NodeProto) -> Chain | None:
    if node.op_type != "ReduceL2":
        return None
    source, current, nodes = node.input[0], node.output[0], [node]
    clip = only_reader(index, current, "Clip")
    if clip is not None:
        low = scalar(index, clip.input[1]) if len(clip.input) > 1 else None
        if low is None or low > _MOST_EPSILON or any(clip.input[2:]):
            return None
        current, nodes = clip.output[0], [*nodes, clip]
    expand = only_reader(index, current, "Expand")
    if expand is not None:
        if index.shapes.get(expand.output[0]) != index.shapes.get(source):
            return None
        current, nodes = expand.output[0], [*nodes, expand]
    divide = only_reader(index, current, "Div")
    axis = _only_axis(index, node)
    if divide is None or list(divide.input) != [source, current] or axis is None:
        return None
    return as_one("LpNormalization", [source], (*nodes, divide), axis=axis, p=2)


def _only_axis(index: GraphIndex, node: onnx.NodeProto) -> int | None:
    """Return the only axis that a reduction goes over and keeps."""
    axes = reduced_axes(index, node)
    return int(axes[0]) if len(axes) == 1 and attribute(node, "keepdims", 1) else None


def _match_pixel_move(index: GraphIndex, node: onnx.NodeProto) -> Chain | None:
    if node.op_type != "Transpose":
        return None
    split = producer(index, node.input[0], "Reshape")
    joined = only_reader(index, node.output[0], "Reshape")
    if split is None or joined is None or only_reader(index, split.output[0], "Transpose") is None:
        return None
    source, output = split.input[0], joined.output[0]
    before, inner = index.shapes.get(source, ()), index.shapes.get(split.output[0], ())
    after = index.shapes.get(output, ())
    if len(before) != 4 or len(inner) != 6 or len(after) != 4 or None in (*before, *inner, *after):
        return None
    perm = tuple(attribute(node, "perm", ()))
    made = _block_node(perm, before, inner, after)
    if made is None:
        return None
    kind, block, mode = made
    more = {"mode": mode} if mode else {}
    return as_one(kind, [source], (split, node, joined), blocksize=block, **more)


def _block_node(
    perm: Sequence[int],
    before: tuple[int | None, ...],
    inner: tuple[int | None, ...],
    after: tuple[int | None, ...],
) -> tuple[str, int, str] | None:
    """Return operator, block and mode for a Transpose between two Reshapes, from the surrounding
    shapes.
    """
    batch, channels, height, width = (size or 0 for size in before)
    if perm == _SPACE_TO_DEPTH:
        block = inner[3] or 0
        split = (batch, channels, height // block, block, width // block, block)
        wanted = (batch, channels * block**2, height // block, width // block)
        if inner == split and after == wanted:
            return "SpaceToDepth", block, ""
    mode = _DEPTH_TO_SPACE.get(tuple(perm))
    if mode is not None:
        block = (inner[1] if mode == "DCR" else inner[2]) or 0
        few = channels // block**2
        split = (batch, block, block, few, height, width)
        if mode == "CRD":
            split = (batch, few, block, block, height, width)
        if inner == split and after == (batch, few, height * block, width * block):
            return "DepthToSpace", block, mode
    return None

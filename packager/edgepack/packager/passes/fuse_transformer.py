"""Pass `fuse_transformer`: exported chains become a transformer's operators.

LayerNormalization (opset 17) and Gelu (opset 20) are standard ONNX. FastGelu, Attention and
SkipLayerNormalization are ONNX Runtime's own, for providers that read these operators; its
transformer optimizer makes the last two.

Recognition of layer normalization written as its formula, and fusion to a single operator.

    d = x - mean(x);  y = d / sqrt(mean(d ** 2) + epsilon) * scale + bias

over the last axis. `d ** 2` may be a Pow or a product of d with itself.
"""

from collections import Counter
from copy import deepcopy

import onnx

from edgepack.packager.graph.edits import MICROSOFT, import_domain, name_nodes
from edgepack.packager.graph.held_weights import load_held
from edgepack.packager.graph.model_files import drop_unused_opsets, opset_of
from edgepack.packager.graph.node_chains import (
    Chain,
    as_one,
    find_chains,
    is_near,
    only_reader,
    other_input,
    producer,
    reduced_axes,
    scalar,
    shorten,
)
from edgepack.packager.graph.queries import GraphIndex, attribute
from edgepack.packager.graph.shape_inference import add_shapes
from edgepack.packager.passes.context import PassContext, PassResult
from edgepack.packager.passes.gelu import fuse_fast_gelu, fuse_gelu
from edgepack.packager.profiles.pass_settings import FuseTransformer
from edgepack.packager.wording import some_of
from edgepack.text import counted

_NAMED = 5
"""So many nodes that stayed are named in the note."""


def fuse_transformer(
    model: onnx.ModelProto, settings: FuseTransformer, context: PassContext
) -> PassResult:
    """Fuse the operators of a transformer.

    Args:
        model: The model, with shapes; changed in place.
        settings: Which operators to make.
        context: Its limits say which of ONNX Runtime's own the provider reads.

    Returns:
        The model, and notes of fused operators and of found chains that could not be fused.
    """
    notes = []
    known = list(model.graph.value_info)
    if "LayerNormalization" in settings.ops:
        notes.append(fuse_layer_norm(model))
    if "Gelu" in settings.ops:
        notes.append(fuse_gelu(model, context.limits))
    if "FastGelu" in settings.ops:
        notes.append(fuse_fast_gelu(model))
    own = {"SkipLayerNormalization", "Attention"} & set(settings.ops)
    if own:
        model, note = _fuse_own(model, own)
        notes.append(note)
    if not any(notes):
        return PassResult(model=model)
    add_shapes(model, known)
    return PassResult(model=model, notes=tuple(note for note in notes if note))


def _fuse_own(model: onnx.ModelProto, wanted: set[str]) -> tuple[onnx.ModelProto, str]:
    """Fuse into ONNX Runtime's own operators, by its optimizer, which finds heads and width by
    itself.
    """
    # It imports sympy, longer than a small model takes to build, and few profiles ask for this.
    from onnxruntime.transformers import optimizer
    from onnxruntime.transformers.fusion_options import FusionOptions

    options = FusionOptions("bert")
    for name in vars(options):
        if name.startswith("enable_"):
            setattr(options, name, False)
    options.enable_skip_layer_norm = "SkipLayerNormalization" in wanted
    options.enable_bias_skip_layer_norm = options.enable_skip_layer_norm
    options.enable_attention = "Attention" in wanted
    # By default a mask becomes its number of words, which holds for padding at the end alone.
    options.use_raw_attention_mask(True)
    options.enable_shape_inference = False  # it would write a file into the current folder
    before = deepcopy(model)
    load_held(before)
    fused = optimizer.optimize_model(
        before, "bert", num_heads=0, hidden_size=0, optimization_options=options, opt_level=0
    ).model
    name_nodes(fused.graph)
    import_domain(fused, MICROSOFT)
    drop_unused_opsets(fused)
    made = Counter(node.op_type for node in fused.graph.node if node.domain == MICROSOFT)
    counts = ", ".join(f"{made[name]} {name}" for name in sorted(wanted))
    left = _attentions(fused.graph) if "Attention" in wanted else []
    stays = (
        f"; of {len(left)} attentions it does not know the chain, and they stay as exported: "
        f"{some_of(left, _NAMED)}"
        if left
        else ""
    )
    return fused, f"ONNX Runtime's transformer optimizer made {counts}{stays}."


def _attentions(graph: onnx.GraphProto) -> list[str]:
    """Return the names of the Softmax nodes that weigh the rows of a matrix product: spelled-out
    attention.
    """
    weighs = {node.input[0] for node in graph.node if node.op_type == "MatMul"}
    return [
        node.name for node in graph.node if node.op_type == "Softmax" and node.output[0] in weighs
    ]


_FIRST_OPSET = 17


def fuse_layer_norm(model: onnx.ModelProto) -> str:
    """Replace each written-out layer normalization by a single node.

    Args:
        model: The model; changed in place.

    Returns:
        A note of the replacements, or "" without any.
    """
    chains = find_chains(model.graph, _match)
    if not chains:
        return ""
    if opset_of(model) < _FIRST_OPSET:
        return (
            f"Left as exported: {counted(len(chains), 'layer normalization')}; the operator "
            f"needs opset {_FIRST_OPSET}."
        )
    shorten(model.graph, chains)
    return f"{counted(len(chains), 'layer normalization')} became one node each."


def _match(index: GraphIndex, root: onnx.NodeProto) -> Chain | None:
    """Start at the square root in the middle and go both ways."""
    if root.op_type != "Sqrt":
        return None
    added = producer(index, root.input[0], "Add")
    if added is None:
        return None
    constant = next((name for name in added.input if scalar(index, name) is not None), "")
    epsilon = scalar(index, constant)
    variance = producer(index, other_input(added, constant), "ReduceMean")
    if epsilon is None or variance is None or not _is_last_axis(index, variance):
        return None
    square = producer(index, variance.input[0], "Pow", "Mul")
    if square is None or not _is_square(index, square):
        return None
    centered = producer(index, square.input[0], "Sub")
    if centered is None:
        return None
    mean = producer(index, centered.input[1], "ReduceMean")
    if mean is None or mean.input[0] != centered.input[0] or not _is_last_axis(index, mean):
        return None
    divided = only_reader(index, root.output[0], "Div")
    if divided is None or divided.input[0] != centered.output[0]:
        return None
    scaled = only_reader(index, divided.output[0], "Mul")
    shifted = only_reader(index, scaled.output[0], "Add") if scaled is not None else None
    if scaled is None or shifted is None:
        return None
    scale, bias = other_input(scaled, divided.output[0]), other_input(shifted, scaled.output[0])
    inside = {square.name, divided.name}
    readers = {index.graph.node[at].name for at in index.consumers[centered.output[0]]}
    if not _are_vectors(index, scale, bias) or readers != inside:
        return None
    parts = (mean, centered, square, variance, added, root, divided, scaled, shifted)
    inputs = [centered.input[0], scale, bias]
    return as_one("LayerNormalization", inputs, parts, axis=-1, epsilon=epsilon)


def _is_square(index: GraphIndex, node: onnx.NodeProto) -> bool:
    if node.op_type == "Mul":
        return bool(node.input[0] == node.input[1])
    return is_near(scalar(index, node.input[1]), 2.0)


def _is_last_axis(index: GraphIndex, node: onnx.NodeProto) -> bool:
    axes = reduced_axes(index, node)
    last = len(index.shapes.get(node.input[0], ())) - 1
    return bool(attribute(node, "keepdims", 1)) and len(axes) == 1 and axes[0] in (-1, last)


def _are_vectors(index: GraphIndex, *names: str) -> bool:
    shapes = [index.shapes[name] for name in names if name in index.initializers]
    return len(shapes) == len(names) and len(set(shapes)) == 1 and len(shapes[0]) == 1

"""Pass `fuse_transformer`: exported chains become a transformer's operators.

LayerNormalization (opset 17) and Gelu (opset 20) are standard ONNX. FastGelu, Attention and
SkipLayerNormalization are ONNX Runtime's own, for providers that read these operators; its
transformer optimizer makes the last two.
"""

from collections import Counter
from copy import deepcopy

import onnx

from edgepack.packager.graph.edits import MICROSOFT, import_domain, name_nodes
from edgepack.packager.graph.held_weights import load_held
from edgepack.packager.graph.model_files import drop_unused_opsets
from edgepack.packager.graph.shape_inference import add_shapes
from edgepack.packager.passes.context import PassContext, PassResult
from edgepack.packager.passes.gelu import fuse_fast_gelu, fuse_gelu
from edgepack.packager.passes.layer_norm import fuse_layer_norm
from edgepack.packager.profiles.pass_settings import FuseTransformer
from edgepack.packager.wording import some_of

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

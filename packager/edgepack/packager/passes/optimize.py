"""Pass `optimize`: ONNX Runtime's graph optimization, done once at build time.

O1 folds constants and shape arithmetic and merges batch normalization into convolutions; its result
is standard ONNX that every provider reads. O2 and up fuse into operators of ONNX Runtime's own,
which only some providers read: the profile's limits say which. A session on the device applies O2
by itself; at build time O2 gives a faster start, and float16 finds the fused operators.

Gemm in the form that every quantizer and provider reads: factors of 1, and a vector as bias.

Gemm takes a bias that broadcasts, and exporters write [1, N]. ONNX Runtime has no integer Gemm for
that: the quantized node restored its weights at every inference and multiplied floats (a file-type
model: 1.37 x the float model's speed instead of 1.6 x). ONNX Runtime has no integer Gemm for
factors either, and QNN leaves such a Gemm to the CPU: the weights absorb the factors.
"""

import errno
import os
import shutil
from collections import Counter
from itertools import count as numbers_from
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from edgepack.agent.runtime.runtime_words import first_line
from edgepack.errors import BuildError
from edgepack.packager.graph import stored_tensors
from edgepack.packager.graph.edits import MICROSOFT, name_nodes, rename_tensors
from edgepack.packager.graph.held_weights import hold_weights, save_for_session
from edgepack.packager.graph.model_files import (
    RUNTIME_ERRORS,
    cpu_session,
    has_own_file,
    load_model,
    opset_of,
    quiet_options,
)
from edgepack.packager.graph.queries import is_standard
from edgepack.packager.graph.shape_inference import add_shapes
from edgepack.packager.passes.clean import drop_unused
from edgepack.packager.passes.context import PassContext, PassResult
from edgepack.packager.passes.lookup_tables import fold_into_tables
from edgepack.packager.passes.one_hot_products import look_up_one_hots
from edgepack.packager.profiles.pass_settings import Optimize
from edgepack.text import counted

_BASIC = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
_EXTENDED = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
_LEVELS = {"O1": _BASIC, "O2": _EXTENDED, "O3": _EXTENDED, "O4": _EXTENDED}
_APPROXIMATES_GELU = frozenset({"O3", "O4"})

_QUANTIZES = "WeightBiasQuantization"
"""An optimizer of ONNX Runtime 1.31 at every level: between quantized activations it gives float
weights integers, with one scale a tensor, and float biases 32-bit ones. What a model that comes
quantized left in floats would be quantized by the way, and sometimes by far off."""


def optimize(model: onnx.ModelProto, settings: Optimize, context: PassContext) -> PassResult:
    """Run ONNX Runtime's optimization on a model.

    Args:
        model: The model.
        settings: The pass's settings.
        context: See `PassContext`.

    Returns:
        The optimized model, cleaned and with shapes.

    Raises:
        BuildError: ONNX Runtime cannot load the model, or made operators that are not ONNX.
    """
    folder = context.work_dir / "optimize"
    folder.mkdir(parents=True, exist_ok=True)
    save_for_session(model, folder / "before.onnx")
    after = folder / "after.onnx"
    options = quiet_options(threads=1)
    options.graph_optimization_level = _LEVELS[settings.level]
    options.optimized_model_filepath = str(after)
    if settings.level in _APPROXIMATES_GELU:
        options.add_session_config_entry("optimization.enable_gelu_approximation", "1")
    if has_own_file(model):
        options.add_session_config_entry(
            "session.optimized_model_external_initializers_file_name", "after.data"
        )
    options.add_session_config_entry("optimization.disable_specified_optimizers", _QUANTIZES)
    try:
        cpu_session(folder / "before.onnx", options)
    except RUNTIME_ERRORS as error:
        _check_room(folder / "before.onnx")
        raise BuildError(
            f"ONNX Runtime cannot load the model: {first_line(error)}",
            found_in="pass optimize",
            remedy="check the model with onnx.checker, or export it again",
        ) from error
    optimized = hold_weights(load_model(after), folder / "after.weights")
    optimized.ir_version = model.ir_version
    made = _made_operators(model, optimized, context)
    name_nodes(optimized.graph)
    _rename_new_constants(model, optimized.graph)
    simplify_gemm(optimized.graph)
    notes = _look_up(optimized, folder)
    shapes = list(optimized.graph.value_info)
    drop_unused(optimized)
    _restore_opset(optimized, opset_of(model))
    add_shapes(optimized, shapes if made else ())
    if made:
        counts = ", ".join(f"{count} {name}" for name, count in sorted(Counter(made).items()))
        notes = (*notes, f"Optimization {settings.level} made ONNX Runtime's own {counts}.")
    return PassResult(model=optimized, notes=notes)


def _look_up(model: onnx.ModelProto, folder: Path) -> tuple[str, ...]:
    """Replace products with one-hot matrices by lookups, and fold following nodes into their
    tables.
    """
    products = look_up_one_hots(model.graph)
    folded = fold_into_tables(model, folder)
    notes = []
    if products:
        verb = "multiplies" if len(products) == 1 else "multiply"
        notes.append(f"{', '.join(products)} {verb} a one-hot matrix: a lookup gives the same.")
    if folded:
        notes.append(f"{counted(folded, 'node')} behind a lookup went into its table.")
    return tuple(notes)


def _check_room(before: Path) -> None:
    """Check the free space: on a full disk, ONNX Runtime only reports "Protobuf serialization
    failed".

    Raises:
        OSError: A second model of this size has no room.
    """
    if shutil.disk_usage(before.parent).free < before.stat().st_size:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(before.parent))


def _made_operators(
    before: onnx.ModelProto, after: onnx.ModelProto, context: PassContext
) -> list[str]:
    """Return types of the operators that are not standard ONNX, if the provider reads such
    operators.
    """
    had = {node.domain for node in before.graph.node}
    made = [node for node in after.graph.node if node.domain not in had | {"", "ai.onnx"}]
    for node in made:
        if node.domain != MICROSOFT or not context.limits.reads_microsoft(node.op_type):
            raise BuildError(
                f"optimization made the operator {node.domain}.{node.op_type}, which "
                f"profile '{context.profile_name}' does not read",
                found_in=f"pass optimize, node {node.name}",
                remedy="level = 'O1' in the pass optimize, or a profile without it",
            )
    return [node.op_type for node in made]


def _rename_new_constants(before: onnx.ModelProto, graph: onnx.GraphProto) -> None:
    """Give ONNX Runtime's new constants names that a later session will not use.

    ONNX Runtime numbers constants from the same start in every session, so that a later session,
    which optimizes the quantized model, fails with "Attempt to replace the existing tensor" (seen
    in MatMulAddFusion, onnxruntime 1.31.1).
    """
    had = {name for node in before.graph.node for name in (*node.input, *node.output)}
    had |= {tensor.name for tensor in before.graph.initializer}
    free = (name for n in numbers_from() if (name := f"edgepack/folded_{n}") not in had)
    renamed = {tensor.name: next(free) for tensor in graph.initializer if tensor.name not in had}
    rename_tensors(graph, renamed)


def _restore_opset(model: onnx.ModelProto, opset: int) -> None:
    for entry in model.opset_import:
        if is_standard(entry) and entry.version != opset:
            raise ValueError(f"optimization changed the opset from {opset} to {entry.version}")


_WEIGHTS, _BIAS = 1, 2
_FACTORS = (("alpha", _WEIGHTS), ("beta", _BIAS))


def simplify_gemm(graph: onnx.GraphProto) -> None:
    """Compute each Gemm's factors into its constants, and give a bias [1, N] the shape [N]."""
    constants = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Gemm" and is_standard(node):
            _fold_factors(graph, node, constants)
            _flatten_bias(graph, node, constants)


def _fold_factors(
    graph: onnx.GraphProto, node: onnx.NodeProto, constants: dict[str, onnx.TensorProto]
) -> None:
    for attribute in list(node.attribute):
        place = dict(_FACTORS).get(attribute.name)
        if place is None:
            continue
        factor = float(helper.get_attribute_value(attribute))
        name = node.input[place] if place < len(node.input) else ""
        if factor != 1.0 and name:
            if name not in constants or constants[name].data_type != onnx.TensorProto.FLOAT:
                continue
            scaled = f"{name}/times {factor!r}"
            if scaled not in constants:
                values = stored_tensors.values(constants[name])
                product = values.astype(np.float32) * np.float32(factor)
                constants[scaled] = numpy_helper.from_array(product, scaled)
                graph.initializer.append(constants[scaled])
            node.input[place] = scaled
        node.attribute.remove(attribute)


def _flatten_bias(
    graph: onnx.GraphProto, node: onnx.NodeProto, constants: dict[str, onnx.TensorProto]
) -> None:
    bias = constants.get(node.input[_BIAS]) if len(node.input) > _BIAS else None
    if bias is None or len(bias.dims) != 2 or bias.dims[0] != 1:
        return
    name = f"{bias.name}/vector"
    if name not in constants:
        vector = numpy_helper.from_array(stored_tensors.values(bias).reshape(-1), name)
        constants[name] = vector
        graph.initializer.append(vector)
    node.input[_BIAS] = name

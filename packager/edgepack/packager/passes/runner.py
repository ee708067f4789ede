"""Runs the passes of a recipe that come before lowering, and checks each one's work."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx

from edgepack.errors import BuildError
from edgepack.packager.graph.model_files import RUNTIME_ERRORS
from edgepack.packager.graph.own_quantization import read_own_quantization
from edgepack.packager.judging.measure import ModelRunner, largest_difference
from edgepack.packager.passes.clamp_mask import clamp_mask
from edgepack.packager.passes.clean import clean, name_nodes
from edgepack.packager.passes.context import PassContext, PassResult
from edgepack.packager.passes.control_flow import (
    describe_node,
    note_what_stays,
    option_that_folds,
)
from edgepack.packager.passes.fix_shapes import fix_shapes
from edgepack.packager.passes.fuse_transformer import fuse_transformer
from edgepack.packager.passes.infer_shapes import infer_shapes
from edgepack.packager.passes.optimize import optimize
from edgepack.packager.passes.qnn_preprocess import qnn_preprocess
from edgepack.packager.passes.spell_out import spell_out
from edgepack.packager.passes.vitisai_preprocess import vitisai_preprocess
from edgepack.packager.profile.pass_settings import (
    ClampMask,
    Clean,
    FixShapes,
    FuseTransformer,
    InferShapes,
    Lowering,
    Optimize,
    QnnPreprocess,
    SpellOut,
    VitisAiPreprocess,
)
from edgepack.packager.profile.schema import Profile
from edgepack.packager.progress import Progress

_CONTROL_FLOW = {"If", "Loop", "Scan"}

_PASSES: Mapping[type, Callable[[onnx.ModelProto, Any, PassContext], PassResult]] = {
    Clean: clean,
    FixShapes: fix_shapes,
    InferShapes: infer_shapes,
    Optimize: optimize,
    FuseTransformer: fuse_transformer,
    QnnPreprocess: qnn_preprocess,
    VitisAiPreprocess: vitisai_preprocess,
    ClampMask: clamp_mask,
    SpellOut: spell_out,
}
_CHECK_SAMPLES = 2
_TOLERANCE = 5e-3
"""Share of an output's root-mean-square by which float passes may move it (reordered sums)."""


def run_float_passes(
    model: onnx.ModelProto, profile: Profile, context: PassContext, progress: Progress
) -> PassResult:
    """Runs every pass up to the one that lowers; the outputs must stay the source model's.

    Args:
        model: The source model; not changed.
        profile: Its `passes` are run in order, up to the one that lowers the precision.
        context: See `PassContext`.
        progress: Told about each pass.

    Returns:
        The prepared float model, and the passes' notes.

    Raises:
        BuildError: A pass failed, or changed what the model computes.
    """
    samples = context.samples.pick(range(min(_CHECK_SAMPLES, context.samples.count)))
    folder = context.work_dir / "passes"
    folder.mkdir(parents=True, exist_ok=True)
    current = onnx.ModelProto()
    current.CopyFrom(model)
    name_nodes(current.graph)  # ONNX Runtime refuses equal names, which exporters do write
    is_float = read_own_quantization(current.graph) is None  # else integers may saturate in kernels
    expected = ModelRunner(current, folder / "source.onnx", optimize=is_float).run_all(samples)
    notes: list[str] = []
    entries = [entry for entry in profile.passes if not isinstance(entry, Lowering)]
    for number, entry in enumerate(entries, start=1):
        name = str(type(entry).__struct_config__.tag)
        progress(f"{profile.name}: {name}", number, len(entries))
        result = _PASSES[type(entry)](current, entry, context)
        current = result.model
        notes.extend(result.notes)
        _check_outputs(current, name, expected, samples, folder, is_float)
    _refuse_forbidden(current, context)
    notes += note_what_stays(current.graph, context.samples)
    return PassResult(model=current, notes=tuple(notes))


def _check_outputs(
    model: onnx.ModelProto, name: str, expected: Any, samples: Any, folder: Any, optimize: bool
) -> None:
    try:
        got = ModelRunner(model, folder / f"{name}.onnx", optimize=optimize).run_all(samples)
    except RUNTIME_ERRORS as error:
        raise BuildError(
            f"after the pass {name} ONNX Runtime cannot run the model: {str(error).strip()}",
            found_in=f"pass {name}",
            remedy=f"a profile of your own without {name}, and a report of this message",
        ) from error
    difference = largest_difference(expected, got)
    if difference > _TOLERANCE:
        raise BuildError(
            f"the pass {name} changed the outputs by {difference:.2%} of their size",
            found_in=f"pass {name}",
            remedy=f"a profile of your own without {name}, or with another opset",
        )


def _refuse_forbidden(model: onnx.ModelProto, context: PassContext) -> None:
    forbidden = set(context.limits.forbidden_ops)
    found = [node for node in model.graph.node if node.op_type in forbidden]
    if found:
        names = ", ".join(describe_node(model.graph, node) for node in found[:5])
        option = option_that_folds(model.graph, found, context.samples)
        raise BuildError(
            f"profile '{context.profile_name}' cannot run {len(found)} node(s): {names}",
            found_in="the model after its passes",
            remedy=(
                f"{option}: all samples hold it, and as a constant it folds the branch away "
                "(applications then no longer feed that input)"
                if option
                else _without(found)
            )
            + ", or build for the profile cpu",
        )


def _without(found: Sequence[onnx.NodeProto]) -> str:
    types = sorted({node.op_type for node in found})
    if set(types) <= _CONTROL_FLOW:
        return "export the model without control flow"
    return f"export the model without {', '.join(types)}"

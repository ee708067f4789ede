"""Runs the passes of a recipe that come before lowering, and checks each one's work."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import onnx
from msgspec.structs import replace

from edgepack.agent.runtime.provider_table import CPU_PROVIDER
from edgepack.agent.runtime.runtime_words import first_line
from edgepack.errors import BuildError
from edgepack.packager.graph.control_flow import (
    describe_node,
    note_what_stays,
    option_that_folds,
)
from edgepack.packager.graph.edits import name_nodes
from edgepack.packager.graph.explicit_attributes import write_defaults
from edgepack.packager.graph.model_files import RUNTIME_ERRORS
from edgepack.packager.graph.operators import facts
from edgepack.packager.graph.shape_inference import add_shapes
from edgepack.packager.graph.source_quantization import read_source_quantization
from edgepack.packager.passes.apply_workarounds import apply_workarounds
from edgepack.packager.passes.clamp_mask import clamp_mask
from edgepack.packager.passes.clean import clean
from edgepack.packager.passes.context import PassContext, PassResult
from edgepack.packager.passes.fix_shapes import fix_shapes, infer_shapes
from edgepack.packager.passes.fuse_transformer import fuse_transformer
from edgepack.packager.passes.optimize import optimize
from edgepack.packager.passes.qnn_preprocess import qnn_preprocess
from edgepack.packager.passes.split_weights import split_weights
from edgepack.packager.passes.vitisai_preprocess import vitisai_preprocess
from edgepack.packager.profiles.pass_settings import Lowering
from edgepack.packager.profiles.schema import Profile
from edgepack.packager.progress import BuildStep, Progress
from edgepack.packager.runtime.model_run import ModelRunner, largest_difference
from edgepack.tasks.arrays import Outputs
from edgepack.text import counted

_PASSES: Mapping[str, Callable[[onnx.ModelProto, Any, PassContext], PassResult]] = {
    "clean": clean,
    "fix_shapes": fix_shapes,
    "infer_shapes": infer_shapes,
    "optimize": optimize,
    "fuse_transformer": fuse_transformer,
    "qnn_preprocess": qnn_preprocess,
    "vitisai_preprocess": vitisai_preprocess,
    "clamp_mask": clamp_mask,
    "apply_workarounds": apply_workarounds,
}
_CHECK_SAMPLES = 2
_TOLERANCE = 5e-3
"""Share of an output's root-mean-square by which float passes may move it (reordered sums)."""


def run_float_passes(
    model: onnx.ModelProto, profile: Profile, context: PassContext, progress: Progress
) -> PassResult:
    """Run every pass before the lowering pass; check that the outputs stay the source model's.

    The outputs are checked after all passes. If an output is wrong, the passes run again, with a
    check after each, to name the faulty pass.

    Args:
        model: The source model; not changed.
        profile: Its `passes` run in order, up to the pass that lowers the precision.
        context: See `PassContext`.
        progress: Called for each pass.

    Returns:
        The prepared float model, and the passes' notes.

    Raises:
        BuildError: A pass failed, or changed the model's results.
    """
    source = deepcopy(model)
    name_nodes(source.graph)  # ONNX Runtime refuses equal names, which exporters do write
    context = replace(context, provider=profile.device.provider)
    look = _Look(source, context)
    try:
        passed = _apply(source, profile, context, progress, look=None)
        look(passed.model, "the last one")
    except Exception:
        _apply(source, profile, context, progress, look=look)
        raise
    _refuse_forbidden(passed.model, context)
    left = note_what_stays(passed.model.graph, context.samples)
    return PassResult(model=passed.model, notes=(*passed.notes, *left))


def _apply(
    source: onnx.ModelProto,
    profile: Profile,
    context: PassContext,
    progress: Progress,
    look: "_Look | None",
) -> PassResult:
    """Return a copy of the source model after its passes, with an optional check after each."""
    current = deepcopy(source)
    notes: list[str] = []
    entries = [entry for entry in profile.passes if not isinstance(entry, Lowering)]
    for number, entry in enumerate(entries, start=1):
        name = str(type(entry).__struct_config__.tag)
        progress(BuildStep(what="float passes", detail=name, done=number, total=len(entries)))
        result = _PASSES[name](current, entry, context)
        current = result.model
        notes.extend(result.notes)
        if look is not None:
            look(current, name)
    if profile.quantize is not None and profile.quantize.weight_parts > 1:
        notes.append(split_weights(current, profile.quantize))
        if look is not None:
            look(current, "weight_parts")
    explicit = profile.limits.explicit_attributes
    if explicit:
        add_shapes(current)
        write_defaults(current, explicit)
    return PassResult(model=current, notes=tuple(notes))


class _Look:
    """Compares a model's outputs with the source model's, on a few samples.

    Args:
        source: The source model.
        context: Its samples, and where models are written that run.
    """

    def __init__(self, source: onnx.ModelProto, context: PassContext) -> None:
        self._samples = context.samples.first(_CHECK_SAMPLES)
        self._folder = context.work_dir / "passes"
        self._folder.mkdir(parents=True, exist_ok=True)
        # Else integers may saturate in kernels.
        self._optimize = read_source_quantization(source.graph) is None
        self._expected = self._run(source)

    def __call__(self, model: onnx.ModelProto, name: str) -> None:
        """Look at a model after a pass.

        Raises:
            BuildError: The model does not run, or gives other outputs.
        """
        try:
            got = self._run(model)
        except RUNTIME_ERRORS as error:
            raise BuildError(
                f"after the pass {name} ONNX Runtime cannot run the model: {first_line(error)}",
                found_in=f"pass {name}",
                remedy=f"a profile of your own without {name}, and a report of this message",
            ) from error
        difference = largest_difference(self._expected, got, self._samples.description)
        if difference > _TOLERANCE:
            raise BuildError(
                f"the pass {name} changed the outputs by {difference:.2%} of their size",
                found_in=f"pass {name}",
                remedy=f"a profile of your own without {name}, or with another opset",
            )

    def _run(self, model: onnx.ModelProto) -> tuple[Outputs, ...]:
        path = self._folder / "model.onnx"
        return ModelRunner(model, path, optimize=self._optimize).run_all(self._samples)


def _refuse_forbidden(model: onnx.ModelProto, context: PassContext) -> None:
    forbidden = set(context.limits.forbidden_ops)
    found = [node for node in model.graph.node if node.op_type in forbidden]
    if found:
        names = ", ".join(describe_node(model.graph, node) for node in found[:5])
        option = option_that_folds(model.graph, found, context.samples)
        raise BuildError(
            f"profile '{context.profile_name}' cannot run {counted(len(found), 'node')}: {names}"
            + "".join(
                f"; {op_type}: {because}"
                for op_type, because in context.limits.forbidden_because.items()
                if any(node.op_type == op_type for node in found)
            ),
            found_in="the model after its passes",
            remedy=(
                f"{option}: all samples hold it, and as a constant it folds the branch away "
                "(applications then no longer feed that input)"
                if option
                else _without(found)
            )
            + ("" if context.provider == CPU_PROVIDER else ", or build for the profile cpu"),
        )


def _without(found: Sequence[onnx.NodeProto]) -> str:
    types = sorted({node.op_type for node in found})
    if all(facts(op_type).is_control_flow for op_type in types):
        return "export the model without control flow"
    return f"export the model without {', '.join(types)}"

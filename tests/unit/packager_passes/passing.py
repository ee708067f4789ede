"""What tests of passes do with a model: give it a context, and compare it before and after."""

from pathlib import Path
from typing import Any

import onnx

from edgepack.packager.graph.edits import name_nodes
from edgepack.packager.passes.context import PassContext
from edgepack.packager.profiles.schema import Limits
from edgepack.packager.runtime.model_run import ModelRunner, largest_difference
from tests.unit.packager_passes.models import samples_for


def context_of(
    model: onnx.ModelProto, folder: Path, *microsoft_ops: str, **limits: Any
) -> PassContext:
    return PassContext(
        profile_name="mine",
        limits=Limits(microsoft_ops=microsoft_ops, **limits),
        samples=samples_for(model, 4),
        work_dir=folder,
    )


def copy_of(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


def difference(before: onnx.ModelProto, after: onnx.ModelProto, folder: Path) -> float:
    """Of the outputs, as a share of their size, on three samples."""
    before = copy_of(before)
    name_nodes(before.graph)
    samples = samples_for(after, 3)
    return largest_difference(
        ModelRunner(before, folder / "before.onnx").run_all(samples),
        ModelRunner(after, folder / "after.onnx").run_all(samples),
    )


def kinds_of(model: onnx.ModelProto) -> list[str]:
    return [entry.op_type for entry in model.graph.node]

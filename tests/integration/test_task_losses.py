"""Builds of models with a guessed task: no loss of the task in silence."""

from pathlib import Path

import onnx
import pytest

from edgepack.bundle.manifest import MANIFEST_FILE, decode_manifest
from edgepack.errors import BuildError
from edgepack.packager import build
from edgepack.tasks.details import TASK_KEPT
from tests.simulators.task_models import NAMES, retained, task_model

NEAR = 0.01
"""Share of the task by which a report may differ from the truth."""


@pytest.mark.parametrize("name", NAMES)
def test_a_variant_keeps_what_is_reported_or_is_refused_or_called_weak(
    name: str, tmp_path: Path, key: Path
) -> None:
    task = task_model(name)
    onnx.save(task.model, tmp_path / "model.onnx")
    try:
        result = build(
            tmp_path / "model.onnx",
            calibration=list(task.calibration),
            profiles=["vitisai-xint8"],
            shapes=task.shapes,
            key=key,
            output=tmp_path / "built",
            version="1.0.0",
        )
    except BuildError as error:
        if "and the budget is" not in error.problem:
            raise
        return
    manifest = decode_manifest((tmp_path / "built" / MANIFEST_FILE).read_bytes())
    assert manifest.facts.description.parts, "the bundle says what its outputs mean"
    (variant,) = manifest.variants
    accuracy = variant.facts.accuracy
    truth = retained(name, tmp_path / "built" / variant.folder / variant.model_file)
    is_near = abs(accuracy.details[TASK_KEPT] - truth) <= NEAR or truth >= 1.0 - NEAR
    if accuracy.weak:
        assert any(accuracy.weak in warning for warning in result.report.warnings)
    assert is_near or accuracy.weak, f"reported {accuracy.details[TASK_KEPT]:.4f}, is {truth:.4f}"

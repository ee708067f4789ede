"""Builds of models with a guessed task: no loss of the task in silence."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

from edgepack.bundle.manifest import MANIFEST_FILE, decode_manifest
from edgepack.errors import BuildError
from edgepack.packager import build
from edgepack.packager.cli.build import build as build_command
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


def test_quantities_in_units_of_their_own_keep_their_last_layer_float(
    tmp_path: Path, key: Path
) -> None:
    task = task_model("sensor_quantities")
    onnx.save(task.model, tmp_path / "model.onnx")
    (tmp_path / "edgepack.toml").write_text(task.outputs)
    model, bundle = str(tmp_path / "model.onnx"), tmp_path / "built"
    for number, sample in enumerate(task.calibration):
        np.savez(tmp_path / f"{number}.npz", **sample)  # type: ignore[arg-type]
    options = {"--profile": "qnn-htp", "--calibration": str(tmp_path), "--version": "1.0.0"}
    options |= {"--key": str(key), "--output": str(bundle), "--prefer": "size"}
    options["--config"] = str(tmp_path / "edgepack.toml")
    arguments = [model, *(word for pair in options.items() for word in pair)]
    done = CliRunner().invoke(build_command, arguments)
    assert done.exit_code == 0, done.output
    assert "1 of 3 nodes float" in done.output
    (variant,) = decode_manifest((bundle / MANIFEST_FILE).read_bytes()).variants
    assert not variant.facts.accuracy.weak
    assert retained("sensor_quantities", bundle / variant.folder / variant.model_file) > 0.99

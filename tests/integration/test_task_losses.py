"""Builds of models whose task edgepack must guess: no loss of the task in silence."""

from functools import cache
from pathlib import Path

import onnx
import pytest

from edgepack.errors import BuildError
from edgepack.packager import build
from edgepack.packager.bundling.output import ARCHIVE_SUFFIX
from tests.simulators.signing import write_keys
from tests.simulators.task_models import NAMES, retained, task_model

NEAR = 0.01


@pytest.mark.parametrize("profile", ["qnn-htp-a8w8", "vitisai-xint8"])
@pytest.mark.parametrize("name", NAMES)
def test_a_variant_keeps_its_task_or_is_refused_or_weak(
    name: str, profile: str, tmp_path: Path
) -> None:
    task = task_model(name)
    onnx.save(task.model, tmp_path / "model.onnx")

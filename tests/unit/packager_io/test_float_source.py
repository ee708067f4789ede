"""Inputs that the float model cannot run are an error with the inputs."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from edgepack.errors import BuildError
from edgepack.packager.source.model import load_source
from edgepack.packager.source.reference import FloatSource
from tests.graphs import graph_model
from tests.unit.packager_io.models import save


def _fixed_reshape() -> onnx.ModelProto:
    return graph_model(
        "(float[n,4] x) => (float[3,4] y) { [fold] y = Reshape(x, shape) }",
        {"shape": np.array([3, 4], np.int64)},
    )


def test_a_sample_that_does_not_run_is_told_with_its_values_and_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source = load_source(save(_fixed_reshape(), tmp_path / "m.onnx"))
    run = FloatSource(source, tmp_path / "float.onnx")
    with pytest.raises(BuildError) as caught:
        run({"x": np.arange(8, dtype=np.float32).reshape(2, 4)})
    assert caught.value.problem.startswith(
        "the float model does not run on a sample: Non-zero status code returned while running "
        "Reshape node. Name:'fold'"
    )
    assert caught.value.found_in == f"{tmp_path / 'm.onnx'}, fed with x: float32[2,4], 0 … 7"
    assert capfd.readouterr().err == "", "ONNX Runtime says nothing of its own"

"""The benchmark's own builds: a single calibration method, and the simulator alone."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from benchmarks.peers.arguments import BUNDLE_FOLDER, TOLD_FILE
from tests.simulators.manifests import QNN
from tests.unit.packager_passes.models import spread_model

_ROOT = Path(__file__).parents[2]
_DIGITS = _ROOT / "benchmarks" / "tasks" / "digits.onnx"


def _samples(folder: Path, shape: tuple[int, ...]) -> Path:
    folder.mkdir()
    for number in range(40):
        values = np.random.default_rng(number).normal(size=shape).astype(np.float32)
        np.savez(folder / f"{number:03}.npz", x=values)
    return folder


def _run(module: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=_ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def _make(setting: str, model: Path, samples: Path, output: Path) -> None:
    output.parent.mkdir()
    made = _run(
        "benchmarks.peers.edgepack",
        *("--model", model, "--calibration-folder", samples),
        *("--setting", setting, "--output", output),
    )
    assert made.returncode == 0, made.stderr


@pytest.mark.parametrize("method", ["entropy", "nonoverflow"])
def test_a_calibrator_makes_one_candidate_even_of_a_model_that_no_method_keeps(
    method: str, tmp_path: Path
) -> None:
    onnx.save(spread_model(1e4), tmp_path / "model.onnx")
    output = tmp_path / "made" / "model.onnx"
    samples = _samples(tmp_path / "samples", (1, 4))
    _make(f"calibrated-by-{method}", tmp_path / "model.onnx", samples, output)
    assert json.loads(output.with_name(TOLD_FILE).read_text())["candidates"] == 1
    made = [node.op_type for node in onnx.load(output).graph.node]
    assert "QuantizeLinear" in made


def test_the_simulator_by_itself_runs_what_was_built_on_it(tmp_path: Path) -> None:
    samples = _samples(tmp_path / "samples", (1, 1, 32, 32))
    output = tmp_path / "made" / "model.onnx"
    _make("qnn-htp", _DIGITS, samples, output)
    bundle = output.with_name(BUNDLE_FOLDER)
    asked = ("--bundle", bundle, "--calibration-folder", samples)
    ran = _run("benchmarks.packager.simulator", *asked)
    assert ran.returncode == 0, ran.stderr
    (model,) = bundle.rglob("model.onnx")
    model.write_bytes(b"no model")
    failed = _run("benchmarks.packager.simulator", *asked)
    assert failed.returncode == 1
    assert f"{QNN} cannot open the model" in failed.stderr


def test_the_process_of_the_simulator_loads_nothing_of_a_build() -> None:
    loaded = "import sys, benchmarks.packager.simulator; print('onnx' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", loaded], cwd=_ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"

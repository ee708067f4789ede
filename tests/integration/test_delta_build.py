"""`edgepack build --delta-from`: the bundle contains the changes, and `edgepack delta` reports the
changes.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.simulators import warm_programs
from tests.unit.packager_io.models import save, small_cnn, write_stack


def _run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "edgepack.cli", *words]
    return warm_programs.run(command, cwd=folder, capture_output=True, text=True, check=False)


def _build(folder: Path, model: str, version: str, *more: str) -> subprocess.CompletedProcess[str]:
    words = ("build", model, "--profile", "fp32", "--version", version, "--name", "small")
    places = ("--calibration", "samples.npz", "--key", "release.key")
    return _run(folder, *words, *places, "-o", f"small-{version}.edgepack", *more)


def _wide(seed: int) -> onnx.ModelProto:
    """Return a model with the weights of seed 0, tuned a little."""
    model = small_cnn(batch=1)
    (last,) = [node for node in model.graph.node if "scores" in node.output]
    width = 400
    name = last.output[0]
    last.output[0] = "narrow"
    values = np.random.default_rng(0).normal(0, 0.1, (_classes(model), width))
    values += 1e-6 * np.random.default_rng(seed).normal(0, 1, values.shape)
    back = np.random.default_rng(1).normal(0, 0.1, (width, _classes(model)))
    for key, weights in (("up", values), ("down", back)):
        model.graph.initializer.append(numpy_helper.from_array(weights.astype(np.float32), key))
    model.graph.node.append(onnx.helper.make_node("MatMul", ["narrow", "up"], ["wide"], name="up"))
    model.graph.node.append(onnx.helper.make_node("MatMul", ["wide", "down"], [name], name="down"))
    return model


def _classes(model: onnx.ModelProto) -> int:
    size: int = model.graph.output[0].type.tensor_type.shape.dim[-1].dim_value
    return size


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("deltas")
    assert _run(found, "keys", "generate", "-o", "release").returncode == 0
    write_stack(found / "samples.npz", 12)
    save(_wide(0), found / "old.onnx")
    save(_wide(5), found / "new.onnx")
    done = _build(found, "old.onnx", "1.0.0")
    assert done.returncode == 0, done.stderr
    return found


def test_a_tuned_model_carries_its_delta_and_the_command_tells_it(folder: Path) -> None:
    done = _build(folder, "new.onnx", "1.1.0", "--delta-from", "small-1.0.0.edgepack")
    assert done.returncode == 0, done.stderr
    assert "delta" in done.stderr
    assert _run(folder, "verify", "small-1.1.0.edgepack", "--key", "release.pub").returncode == 0
    words = ("delta", "small-1.0.0.edgepack", "small-1.1.0.edgepack")
    document = json.loads(_run(folder, *words, "--json").stdout)
    (variant,) = document["variants"]
    transfer = variant["transfer"]
    assert transfer["with_delta_bytes"] < 0.75 * transfer["fetch_bytes"]
    assert variant["wire_bytes"] == transfer["with_delta_bytes"] + document["head_bytes"]
    assert " by delta" in _run(folder, *words).stdout


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--name", "other"), "a delta is from an older bundle of 'other'"),
        (("--encrypt-to", "release.pub"), "no delta leads to an encrypted bundle"),
    ],
)
def test_what_no_delta_can_lead_from_is_refused_at_once(
    more: tuple[str, ...], said: str, folder: Path
) -> None:
    done = _build(folder, "new.onnx", "1.2.0", "--delta-from", "small-1.0.0.edgepack", *more)
    assert done.returncode == 1
    assert said in done.stderr

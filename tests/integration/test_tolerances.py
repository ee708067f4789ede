"""Tolerances by column, as metres beside a quaternion: in the build, on a device and in shadow."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from edgepack.bundle.golden import compare_outputs, is_same_answer, read_golden
from edgepack.bundle.manifest import MANIFEST_FILE, decode_manifest
from edgepack.tasks.arrays import Outputs
from tests.graphs import graph_model
from tests.simulators import warm_programs
from tests.simulators.device import Device

_LOOSE, _BY_COLUMN = "1.0", f"{[1.0] * 3 + [0.05] * 4}"


@pytest.fixture
def poses(tmp_path: Path) -> Path:
    """Return a folder with a model of places in metres beside rotations, and its samples."""
    model = graph_model(
        "(float[1,7] x) => (float[1,7] pose) { pose = MatMul(x, w) }",
        {"w": np.eye(7, dtype=np.float32)},
    )
    onnx.save(model, tmp_path / "model.onnx")
    rng = np.random.default_rng(1)
    turns = rng.normal(0, 1, (80, 1, 4))
    turns /= np.linalg.norm(turns, axis=-1, keepdims=True)
    x = np.concatenate([rng.uniform(-12, 12, (80, 1, 3)), turns], axis=-1)
    np.savez(tmp_path / "samples.npz", x=x.astype(np.float32))
    return tmp_path


def _build(
    folder: Path, key: Path, tolerance: str, profile: str
) -> subprocess.CompletedProcess[str]:
    settings = folder / "edgepack.toml"
    settings.write_text(f'[outputs.pose]\ntask = "values"\ntolerance = {tolerance}\n')
    words: list[str | Path] = [
        "build",
        folder / "model.onnx",
        "--profile",
        profile,
        "--config",
        settings,
    ]
    words += [
        "--calibration",
        folder / "samples.npz",
        "--key",
        key,
        "--version",
        "1.0.0",
        "--force",
    ]
    return _run("edgepack.cli", *words, "-o", folder / "built")


def _run(program: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", program, *map(str, words)]
    return warm_programs.run(command, capture_output=True, text=True, timeout=600)


def test_tolerance_by_column_rejects_what_one_for_all_passes(poses: Path, key: Path) -> None:
    passed = _build(poses, key, _LOOSE, "vitisai-xint8")
    assert passed.returncode == 0, passed.stderr
    refused = _build(poses, key, _BY_COLUMN, "vitisai-xint8")
    assert refused.returncode == 1
    assert "tolerance_kept" in refused.stderr
    wrong = _build(poses, key, "[1.0, 1.0]", "vitisai-xint8")
    assert wrong.returncode == 1
    assert "tolerance has 2 numbers, and the last axis of pose" in wrong.stderr
    assert "has 7 columns" in wrong.stderr


def test_device_and_shadow_hold_the_tolerance_of_each_column(
    poses: Path, key: Path, tmp_path: Path
) -> None:
    built = _build(poses, key, _BY_COLUMN, "cpu")
    assert built.returncode == 0, built.stderr
    manifest = decode_manifest((poses / "built" / MANIFEST_FILE).read_bytes())
    (variant,) = manifest.variants
    facts = variant.facts
    (agreement,) = facts.agreements
    assert agreement.part.settings["tolerances"] == {"pose": [1.0] * 3 + [0.05] * 4}

    device = Device(tmp_path / "device", "mqtt://127.0.0.1:1", key.with_suffix(".pub"))
    words = ("install", poses / "built", "--config", device.config, "--soak", "0", "--json")
    installed = _run("edgepack.agent.cli", *words)
    assert installed.returncode == 0, installed.stderr
    assert list(json.loads(installed.stdout)["models"])

    golden = read_golden(poses / "built" / "golden" / "golden.npz").outputs

    def moved(column: int) -> list[Outputs]:
        return [
            {"pose": one["pose"] + np.float32(0.06) * (np.arange(7) == column)} for one in golden
        ]

    for column, is_right in ((0, True), (5, False)):
        got = moved(column)
        assert compare_outputs(golden, got, {}, facts.agreements).right == is_right
        same = is_same_answer(golden[0], got[0], {}, facts.agreements, golden)
        assert same == is_right
    older = {"pose": golden[0]["pose"][:, :6]}
    assert not is_same_answer(older, golden[0], {}, facts.agreements, golden), "of another width"

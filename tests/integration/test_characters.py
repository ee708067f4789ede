"""A model that gives the number of each character, from the command to the report."""

import html
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx

from tests.graphs import graph_model
from tests.simulators import warm_programs

_LETTERS = "abcdefghij"


def _build(folder: Path, key: Path, names: str) -> subprocess.CompletedProcess[str]:
    (folder / "edgepack.toml").write_text(
        f'[outputs.said]\ntask = "text"\nclass_names = {[*names]}\n'.replace("'|'", "''")
    )
    command = [sys.executable, "-m", "edgepack.cli", "build", "model.onnx", "--profile", "cpu"]
    command += ["--calibration", "samples.npz", "--key", str(key), "--version", "1.0.0"]
    return warm_programs.run(
        [*command, "--force", "-o", "built"], cwd=folder, capture_output=True, text=True
    )


def test_empty_class_name_is_no_character_and_spaces_alone_are_no_text(
    tmp_path: Path, key: Path
) -> None:
    rng = np.random.default_rng(1)
    model = graph_model(
        "(float[1,6,16] frames) => (int64[1,6] said)"
        " { scores = MatMul(frames, w) said = ArgMax<axis = 2, keepdims = 0>(scores) }",
        {"w": rng.normal(0, 1, (16, 12)).astype(np.float32)},
    )
    onnx.save(model, tmp_path / "model.onnx")
    frames = rng.normal(0, 1, (80, 1, 6, 16)).astype(np.float32)
    np.savez(tmp_path / "samples.npz", frames=frames)
    done = _build(tmp_path, key, f"|{_LETTERS} ")
    assert done.returncode == 0, done.stderr
    report = html.unescape((tmp_path / "built" / "report.html").read_text())
    for fact in ("class 0, which has no name", "blank = 0"):
        assert fact in report
    refused = _build(tmp_path, key, "|" + " " * 11)
    assert refused.returncode == 1
    assert "no class of output 'said' is a character" in refused.stderr
    assert "class_names" in refused.stderr

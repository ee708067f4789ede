"""Doubts from the command to the first line of the report: 8-bit variants that a task's measure
passes, and that lose something else."""

import html
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from edgepack.tasks.arrays import Singles
from tests.graphs import graph_model
from tests.simulators import warm_programs

Made = tuple[onnx.ModelProto, dict[str, Singles], str]
"""A model, its samples, and the declarations."""

_COUNT = 96


def _normal(*shape: int, seed: int, spread: float = 1.0) -> Singles:
    return np.random.default_rng(seed).normal(0, spread, shape).astype(np.float32)


def _crowd() -> Made:
    """Return a map of objects over a background that 8 bits round to 0."""
    rng = np.random.default_rng(1)
    maps = np.full((_COUNT, 1, 100), 0.003)
    for row in maps[:, 0]:
        objects = rng.choice(100, int(rng.integers(14, 26)), replace=False)
        row[objects] = rng.uniform(0.7, 1.3, len(objects))
    model = graph_model(
        "(float[1,100] x) => (float[1,100] density) { density = MatMul(x, w) }",
        {"w": np.eye(100, dtype=np.float32)},
    )
    return model, {"x": maps.astype(np.float32)}, '[outputs.density]\ntask = "sums"\n'


def _running_scores() -> Made:
    """Return scores of a state that adds up steps, whose small weights 8 bits round up by 12 %."""
    weights = np.concatenate([np.eye(4), 0.0209 * np.eye(4)]).astype(np.float32)
    model = graph_model(
        "(float[1,8] x, float[1,4] state) => (float[1,4] scores, float[1,4] stateN)"
        " { step = MatMul(x, w) stateN = Add(state, step) scores = MatMul(stateN, v) }",
        {"w": weights, "v": 3.0 * np.eye(4, dtype=np.float32)},
    )
    x = _normal(_COUNT, 1, 8, seed=3)
    x[:, 0, 4:] = 40.0 * np.eye(4)[np.arange(_COUNT) // 32] - 10.0
    samples = {"x": x, "state": np.zeros((_COUNT, 1, 4), np.float32)}
    return model, samples, '[outputs.scores]\ntask = "classification"\n'


def _small_column() -> Made:
    """Return quantities, of which the second varies little beside its level."""
    model = graph_model(
        "(float[1,3] x) => (float[1,3] state) { spread = MatMul(x, w) state = Add(spread, level) }",
        {
            "w": np.diag([200.0, 0.3, 150.0]).astype(np.float32),
            "level": np.array([[700.0, 900.0, 600.0]], np.float32),
        },
    )
    x = np.random.default_rng(4).uniform(-1, 1, (_COUNT, 1, 3))
    return model, {"x": x.astype(np.float32)}, '[outputs.state]\ntask = "values"\n'


def _shares() -> Made:
    """Return a quantity below 1 that spans magnitudes."""
    model = graph_model(
        "(float[1,4] x) => (float[1,1] share) { share = MatMul(x, w) }",
        {"w": np.array([[0.5], [0.25], [0.125], [0.125]], np.float32)},
    )
    x = np.exp(np.random.default_rng(6).uniform(-4, 0, (_COUNT, 1, 1))) * np.ones(4)
    return model, {"x": x.astype(np.float32)}, '[outputs.share]\ntask = "values"\n'


def _memory() -> Made:
    """Return a filter whose state has a name of its own and is 0 in all samples."""
    model = graph_model(
        "(float[1,8] x, float[1,4] state) => (float[1,3] level, float[1,4] memory) {"
        " step = MatMul(x, w) sum = Add(state, step) memory = Tanh(sum)"
        " level = MatMul(memory, v) }",
        {"w": _normal(8, 4, seed=2, spread=0.3), "v": _normal(4, 3, seed=8)},
    )
    samples = {"x": _normal(_COUNT, 1, 8, seed=3), "state": np.zeros((_COUNT, 1, 4), np.float32)}
    ignored = '[outputs.memory]\ntask = "ignored"\n'
    return model, samples, f'[outputs.level]\ntask = "values"\ntolerance = 1\n{ignored}'


def _few() -> Made:
    """Return quantities of 20 samples, of which six are held out."""
    model = graph_model(
        "(float[1,8] x) => (float[1,3] level) { level = MatMul(x, w) }",
        {"w": _normal(8, 3, seed=2)},
    )
    declared = '[outputs.level]\ntask = "values"\n'
    return model, {"x": _normal(20, 1, 8, seed=3)}, declared


@pytest.mark.parametrize(
    ("make", "facts"),
    [
        (_crowd, ("output 'density'", "bias", "--metric MODULE:FUNCTION")),
        (
            _running_scores,
            ("output 'scores'", "8 inferences", "[inputs.state] kind = 'raw' and steps"),
        ),
        (_small_column, ("column 1 of output 'state'", "[outputs.state] tolerance")),
        (_shares, ("output 'share'", "relative error", "[outputs.share] tolerance")),
        (_few, ("only 6 samples were held out", "27 samples or more", "--evaluation")),
        (_memory, ("input 'state'", "[inputs.state]", "from = 'memory'")),
    ],
    ids=["sums", "growth", "column", "magnitudes", "few", "constant"],
)
def test_doubt_leads_the_report_and_strict_rejects_it(
    make: Callable[[], Made], facts: tuple[str, ...], tmp_path: Path, key: Path
) -> None:
    model, samples, declared = make()
    names = ("model.onnx", "samples.npz", "edgepack.toml", "built")
    file, inputs, settings, bundle = (tmp_path / name for name in names)
    onnx.save(model, file)
    np.savez(inputs, **samples)  # type: ignore[arg-type]
    settings.write_text(declared)
    words: list[str | Path] = ["edgepack.cli", "build", file]
    words += ["--profile", "vitisai-xint8", "--config", settings]
    words += ["--calibration", inputs, "--key", key, "--version", "1.0.0", "-o"]
    done = _run(*words, bundle)
    assert done.returncode == 0, done.stderr
    page = html.unescape((bundle / "report.html").read_text())
    (first_line,) = re.findall(r'<p class="verdict">(.*?)</p>', page, re.DOTALL)
    strict = _run(*words, tmp_path / "strict", "--strict")
    assert strict.returncode == 1
    assert not (tmp_path / "strict").exists()
    for text in (done.stdout, first_line, strict.stderr):
        assert "is weak" in text
        for fact in facts:
            assert fact in " ".join(text.split()), (fact, text)


def _run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", *map(str, words)]
    return warm_programs.run(command, capture_output=True, text=True, timeout=600)

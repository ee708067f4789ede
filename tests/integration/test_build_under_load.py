"""The decision between a quantized model and the float one, next to busy programs."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import DEVNULL, Popen

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from edgepack.packager import build

BUSY = 2
OPPOSITES = ({"faster", "not faster"},)


@contextmanager
def _busy_programs(count: int) -> Iterator[None]:
    """Run programs that compute without an end, next to the block."""
    code = "while True: pass"
    programs = [
        Popen([sys.executable, "-c", code], stdout=DEVNULL, stderr=DEVNULL) for _ in range(count)
    ]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
        for program in programs:
            program.wait()


def _convolutions(path: Path, width: int) -> None:
    """Write four convolutions of so many channels, as an image classifier has them."""
    rng = np.random.default_rng(0)
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> graph (float[1,3,48,48] x) => (float[1,10] y) {'
        "a = Conv<strides=[2,2],pads=[1,1,1,1]>(x, w0) b = Relu(a) "
        "c = Conv<pads=[1,1,1,1]>(b, w1) d = Relu(c) e = Conv<pads=[1,1,1,1]>(d, w2) f = Relu(e) "
        "p = GlobalAveragePool(f) q = Flatten(p) y = MatMul(q, w3) }"
    )
    shapes = ((width, 3, 3, 3), (width, width, 3, 3), (width, width, 3, 3), (width, 10))
    for number, shape in enumerate(shapes):
        fan = int(np.prod(shape[1:])) if len(shape) == 4 else shape[0]
        values = rng.normal(0, np.sqrt(2 / fan), shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(values, f"w{number}"))
    onnx.save(model, path)


@pytest.mark.parametrize("width", [8, 96], ids=["small", "large"])
def test_busy_programs_never_turn_the_decision_for_float_or_int8_round(
    tmp_path: Path, key: Path, width: int
) -> None:
    _convolutions(tmp_path / "model.onnx", width)
    rng = np.random.default_rng(1)
    np.savez(tmp_path / "samples.npz", x=rng.normal(0, 1, (60, 3, 48, 48)).astype(np.float32))
    outcomes = {}
    for name, count in (("quiet", 0), ("busy", BUSY)):
        with _busy_programs(count):
            result = build(
                tmp_path / "model.onnx",
                profiles=["cpu"],
                calibration=tmp_path / "samples.npz",
                key=key,
                version="1.0.0",
                output=tmp_path / name,
            )
        (variant,) = result.report.variants
        assert variant.timing is not None
        outcomes[name] = variant.timing.outcome
        if outcomes[name] == "undecided":
            assert any(note.startswith("Undecided: ") for note in variant.notes)
            assert variant.precision != "fp32", "the profile's rule"
    assert set(outcomes.values()) not in OPPOSITES, outcomes

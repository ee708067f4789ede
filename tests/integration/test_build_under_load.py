"""The decision between a quantized and a float model, next to busy programs."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import DEVNULL, Popen

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from edgepack.agent.runtime.opening import ON_CPU
from edgepack.packager import VariantReport, build
from edgepack.packager.gates.checks import FASTER_FACTOR
from edgepack.packager.runtime.model_run import open_on_provider
from edgepack.packager.runtime.timing import take_turns
from tests.graphs import graph_model

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


def _convolutions(path: Path, width: int, sines: int = 0) -> None:
    """Write four convolutions with a number of channels, like an image classifier.

    Args:
        path: The model's file.
        width: Channels.
        sines: Sines of an input behind the convolutions, which stay float.
    """
    rng = np.random.default_rng(0)
    chain, outputs = "", "float[1,10] y"
    if sines:
        more = " ".join(f"s{number + 1} = Sin(s{number})" for number in range(sines))
        chain = f"s0 = Sin(b) {more} z = ReduceMean<axes=[2,3],keepdims=0>(s{sines})"
        outputs += f", float[1,{width}] z"
    model = graph_model(
        f"(float[1,3,48,48] x) => ({outputs}) {{"
        "a = Conv<strides=[2,2],pads=[1,1,1,1]>(x, w0) b = Relu(a) "
        "c = Conv<pads=[1,1,1,1]>(b, w1) d = Relu(c) e = Conv<pads=[1,1,1,1]>(d, w2) f = Relu(e) "
        f"p = GlobalAveragePool(f) q = Flatten(p) y = MatMul(q, w3) {chain} }}"
    )
    shapes = ((width, 3, 3, 3), (width, width, 3, 3), (width, width, 3, 3), (width, 10))
    for number, shape in enumerate(shapes):
        fan = int(np.prod(shape[1:])) if len(shape) == 4 else shape[0]
        values = rng.normal(0, np.sqrt(2 / fan), shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(values, f"w{number}"))
    onnx.save(model, path)


def _seconds(path: Path, samples: np.ndarray) -> float:
    """Return the median time of an inference of a float model, on a single thread."""
    run = open_on_provider(path, ON_CPU, threads=1)
    feeds = [{"x": sample[None]} for sample in samples[:8]]
    return take_turns([run], feeds, rounds=50, clock=time.thread_time).medians_ms[0] / 1e3


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


def test_a_model_near_the_threshold_of_speed_never_turns_from_float_to_int8(
    tmp_path: Path, key: Path
) -> None:
    """The model has as many float sines as needed for an int8 form 5 % faster on this machine."""
    rng = np.random.default_rng(1)
    samples = rng.normal(0, 1, (45, 3, 48, 48)).astype(np.float32)
    np.savez(tmp_path / "samples.npz", x=samples)
    loose = '[profile]\nname = "loose"\nextends = "cpu"\n[gates.accuracy.any]\nkeep = 0.01\n'
    loose += '[[pass]]\nname = "quantize"\nraced_ops = ""\n'
    (tmp_path / "loose.toml").write_text(loose)

    def build_model(output: str) -> VariantReport:
        result = build(
            tmp_path / "model.onnx",
            profiles=[str(tmp_path / "loose.toml")],
            calibration=tmp_path / "samples.npz",
            key=key,
            version="1.0.0",
            output=tmp_path / output,
        )
        (variant,) = result.report.variants
        return variant

    _convolutions(tmp_path / "sines.onnx", 24, sines=40)
    _convolutions(tmp_path / "model.onnx", 24)
    plain_s = _seconds(tmp_path / "model.onnx", samples)
    sine_s = (_seconds(tmp_path / "sines.onnx", samples) - plain_s) / 40
    timing = build_model("without-sines").timing
    assert timing is not None
    assert timing.speedup is not None
    if timing.outcome != "faster":
        pytest.skip("8-bit convolutions are not faster on this CPU")
    gained_s = plain_s - FASTER_FACTOR * plain_s / timing.speedup
    _convolutions(tmp_path / "model.onnx", 24, sines=round(gained_s / (FASTER_FACTOR - 1) / sine_s))
    outcomes = []
    for number in range(5):
        with _busy_programs(BUSY * (number % 2)):
            variant = build_model(f"repeat-{number}")
        assert variant.timing is not None
        outcomes.append(variant.timing.outcome)
        is_undecided = outcomes[-1] == "undecided"
        assert any(note.startswith("Undecided: ") for note in variant.notes) == is_undecided
        assert (variant.precision == "fp32") == (outcomes[-1] == "not faster"), "the profile's rule"
    assert not {"faster", "not faster"} <= set(outcomes), outcomes

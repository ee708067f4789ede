"""Inputs with heavy tails, whose likely extremes a quantized model cuts off, and inputs without.

ONNX Runtime quantizes each drawn model by samples like those of a build, with integers of 16 bits:
what is lost is cut off. A variant loses if it has less than .99 of the float model's score on
10,000 fresh inputs. Variants that held-out samples reject or doubt are left out.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
from msgspec.structs import replace
from onnx import numpy_helper, parser

from benchmarks.evidence.known import Case
from benchmarks.evidence.recordings import quantize
from benchmarks.task_kinds.kind import Half
from benchmarks.tasks.task import Array
from edgepack.packager.pipeline.holdout_verdict import (
    HoldoutVerdict,
    doubt_extremes,
    judge_on_holdout,
)
from edgepack.packager.pipeline.selection import EvaluationInputs
from edgepack.packager.runtime.evaluator import open_plain
from edgepack.packager.runtime.model_run import Run, remember
from edgepack.packager.samples.coverage import measure_coverage
from edgepack.packager.source.model import load_source
from edgepack.packager.tensors.sequence import Samples, SampleSplit
from edgepack.tasks.description import ModelDescription, TaskOutputs

QUESTION = "Do likely extremes of an input lose a hundredth of a task that held-out samples keep?"

_KEPT = 0.99
_FRESH = 10_000
_COUNTS = (120, 40, 80)
"""Samples for ranges, to choose, and held out."""

_WIDTH = 32
_SEEDS = range(5)


class _Kind(NamedTuple):
    """A kind of model.

    Attributes:
        name, half: See `Case`.
        draw: Returns inputs, (count, width).
        model: Graph, whose weights `a` and `b` are drawn.
        task: Task of the output.
        score: Returns the score of outputs by the truth.
        noise: Error of the float model, in the spread of its outputs.
    """

    name: str
    half: Half
    draw: Callable[[np.random.Generator, int], Array]
    model: str
    task: str
    score: Callable[[Array, Array], float]
    noise: float = 0.3


def _levels(size: float, rng: np.random.Generator, count: int) -> Array:
    """Return series of unlike level, as the forecasts have."""
    level = np.exp(size * rng.normal(0, 1, (count, 1)))
    return np.asarray(level * rng.uniform(0.2, 1.0, (count, _WIDTH)))


def _students(freedom: float, rng: np.random.Generator, count: int) -> Array:
    return rng.standard_t(freedom, (count, _WIDTH))


def _payments(rng: np.random.Generator, count: int) -> Array:
    """Return amounts beside facts without a tail."""
    facts = rng.normal(0, 1, (count, _WIDTH))
    facts[:, :4] = rng.pareto(2.5, (count, 4))
    return facts


def _rain(rng: np.random.Generator, count: int) -> Array:
    """Return rain at stations: storms come to all of them."""
    return np.asarray(rng.gamma(0.4, 4.0, (count, 1)) * rng.gamma(2.0, 0.5, (count, _WIDTH)))


def _waits(rng: np.random.Generator, count: int) -> Array:
    return rng.exponential(1.0, (count, _WIDTH))


def _glitches(rng: np.random.Generator, count: int) -> Array:
    """Return readings, of which one in 60 is of a sensor with a loose contact."""
    large = np.where(rng.random((count, 1)) < 1 / 60, rng.uniform(5, 40, (count, 1)), 1.0)
    return np.asarray(large * rng.normal(0, 1, (count, _WIDTH)))


def _loudness(rng: np.random.Generator, count: int) -> Array:
    """Return amplitudes of a waveform whose loudness differs by 12 decibels."""
    gain = 10 ** rng.normal(0, 0.6, (count, 1))
    return np.asarray(gain * np.sin(rng.uniform(0, 6, (count, 1)) + np.arange(_WIDTH) * 0.7))


def _limited(rng: np.random.Generator, count: int) -> Array:
    return np.minimum(_levels(0.9, rng, count), 2.0)


def _logarithms(rng: np.random.Generator, count: int) -> Array:
    return np.log(_levels(0.9, rng, count))


def _normal(rng: np.random.Generator, count: int) -> Array:
    return rng.normal(0, 1, (count, _WIDTH))


def _r2(truth: Array, got: Array) -> float:
    return float(np.mean(1 - np.square(got - truth).mean(0) / truth.var(0)))


def _skill(truth: Array, got: Array) -> float:
    """Return how much nearer than the median values are, on average."""
    naive = np.abs(truth - np.median(truth, axis=0)).mean(0)
    return float(np.mean(1 - np.abs(truth - got).mean(0) / naive))


def _relative(truth: Array, got: Array) -> float:
    """Return the share of rows that are off by less than a quarter of their own size."""
    off = np.linalg.norm(got - truth, axis=1) / np.linalg.norm(truth, axis=1)
    return float((off < 0.25).mean())


def _best(truth: Array, got: Array) -> float:
    """Return the share of rows with the right best column."""
    return float((truth.argmax(1) == got.argmax(1)).mean())


_LINEAR = "y = MatMul(x, c)"
_NET = "h = MatMul(x, a) r = Relu(h) y = MatMul(r, b)"
_BOUNDED = "h = MatMul(x, a) r = Tanh(h) y = MatMul(r, b)"


def _loads(rng: np.random.Generator, count: int) -> Array:
    return rng.weibull(0.7, (count, _WIDTH))


def _river(rng: np.random.Generator, count: int) -> Array:
    """Return levels along a river, which a flood raises together (log-logistic)."""
    share = rng.random((count, 1))
    return np.asarray((share / (1 - share)) ** (1 / 3) * rng.normal(1.0, 0.3, (count, _WIDTH)))


def _returns(rng: np.random.Generator, count: int) -> Array:
    """Return changes of prices; the variance of a day is an inverse gamma's."""
    return np.asarray(rng.normal(0, 1, (count, _WIDTH)) / np.sqrt(rng.gamma(2.0, 0.5, (count, 1))))


def _crowds(rng: np.random.Generator, count: int) -> Array:
    return np.asarray(rng.poisson(rng.gamma(0.7, 12.0, (count, 1)), (count, _WIDTH)), np.float64)


def _laplace(rng: np.random.Generator, count: int) -> Array:
    return rng.laplace(0.0, 1.0, (count, _WIDTH))


def _uniform(rng: np.random.Generator, count: int) -> Array:
    return rng.uniform(-1.0, 1.0, (count, _WIDTH))


def _shares(rng: np.random.Generator, count: int) -> Array:
    return rng.beta(0.5, 3.0, (count, _WIDTH))


def _quakes(rng: np.random.Generator, count: int) -> Array:
    """Return amplitudes of earthquakes whose magnitudes are exponential, beside other readings."""
    readings = rng.normal(0, 1, (count, _WIDTH))
    readings[:, :8] *= 10 ** rng.exponential(0.3, (count, 1))
    return readings


def _clicks(rng: np.random.Generator, count: int) -> Array:
    return np.asarray(np.minimum(rng.zipf(2.2, (count, _WIDTH)), 1000), np.float64)


def _gusts(rng: np.random.Generator, count: int) -> Array:
    return rng.gumbel(4.0, 1.5, (count, _WIDTH))


def _bursts(rng: np.random.Generator, count: int) -> Array:
    is_burst = rng.random((count, _WIDTH)) < 0.1
    return np.where(
        is_burst, rng.exponential(5.0, is_burst.shape), rng.normal(0, 0.3, is_burst.shape)
    )


_KINDS = (
    _Kind("forecasts", "developed", partial(_levels, 0.9), _LINEAR, "values", _skill),
    _Kind("calm forecasts", "developed", partial(_levels, 0.4), _LINEAR, "values", _skill),
    _Kind("limited forecasts", "developed", _limited, _LINEAR, "values", _skill),
    _Kind("forces by shocks", "developed", partial(_students, 2.5), _NET, "values", _r2),
    _Kind("mild shocks", "developed", partial(_students, 6.0), _NET, "values", _r2),
    _Kind("risk by payments", "developed", _payments, _BOUNDED, "classification", _best),
    _Kind("sums by payments", "developed", _payments, _LINEAR, "values", _r2),
    _Kind("runoff by rain", "developed", _rain, _NET, "values", _r2),
    _Kind("distances by rain", "developed", _rain, _NET, "values", _skill),
    _Kind("queues by waits", "developed", _waits, _NET, "values", _r2),
    _Kind("readings with glitches", "developed", _glitches, _NET, "values", _r2),
    _Kind("classes of readings", "developed", _glitches, _NET, "classification", _best),
    _Kind("spectra by loudness", "developed", _loudness, _LINEAR, "values", _relative),
    _Kind("power of spectra", "developed", _loudness, _LINEAR, "values", _r2),
    _Kind("logarithms of levels", "developed", _logarithms, _NET, "values", _r2),
    _Kind("normal inputs", "developed", _normal, _NET, "values", _r2),
    _Kind("bounded answers", "developed", partial(_students, 2.5), _BOUNDED, "values", _r2),
    _Kind("wear by loads", "independent", _loads, _NET, "values", _r2),
    _Kind("energy of a river", "independent", _river, _NET, "values", _skill),
    _Kind("volatile returns", "independent", _returns, _NET, "values", _r2),
    _Kind("sums of counts", "independent", _crowds, _LINEAR, "values", _r2),
    _Kind("Laplace noise", "independent", _laplace, _NET, "values", _r2),
    _Kind("uniform inputs", "independent", _uniform, _NET, "values", _r2),
    _Kind("sums of shares", "independent", _shares, _LINEAR, "values", _skill),
    _Kind("places by earthquakes", "independent", _quakes, _BOUNDED, "classification", _best),
    _Kind("damage by earthquakes", "independent", _quakes, _NET, "values", _r2),
    _Kind("order of clicks", "independent", _clicks, _LINEAR, "values", _relative),
    _Kind("power by gusts", "independent", _gusts, _NET, "values", _skill),
    _Kind("sums of bursts", "independent", _bursts, _NET, "values", _r2),
    _Kind("classes of bursts", "independent", _bursts, _NET, "classification", _best),
)


def cases(work: Path) -> Iterator[Case]:
    """Yield the cases.

    Args:
        work: Folder for the models.
    """
    for kind in _KINDS:
        for seed in _SEEDS:
            folder = work / f"{kind.name}-{seed}"
            folder.mkdir()
            yield from _cases(kind, seed, folder)


def _cases(kind: _Kind, seed: int, folder: Path) -> Iterator[Case]:
    weights = np.random.default_rng([41, seed])
    rng = np.random.default_rng([43, seed])
    path, quantized = folder / "model.onnx", folder / "quantized.onnx"
    onnx.save(computed_model(kind.model, _draw_weights(weights)), path)
    rows = kind.draw(rng, sum(_COUNTS)).astype(np.float32)[:, None]
    quantize("a16w8", path, quantized, [{"x": row} for row in rows[: _COUNTS[0]]])
    float_run, run = (remember(open_plain(one)) for one in (path, quantized))
    fresh = kind.draw(rng, _FRESH).astype(np.float32)
    expected, got = (each({"x": fresh})["y"].astype(np.float64) for each in (float_run, run))
    truth = expected + kind.noise * expected.std(0) * rng.normal(0, 1, expected.shape)
    kept = kind.score(truth, got) / kind.score(truth, expected)
    part = TaskOutputs(task=kind.task, outputs=("y",), source="declared")
    samples = Samples(
        count=len(rows),
        read=lambda index: {"x": rows[index]},
        source="drawn",
        description=ModelDescription(parts=(part,)),
    )
    places = np.cumsum((0, *_COUNTS))
    calibration, search, held_out = (
        samples.pick(range(first, end)) for first, end in pairwise(places.tolist())
    )
    split = SampleSplit(calibration=calibration, search=search, held_out=held_out)
    inputs = EvaluationInputs(
        source=load_source(path), split=split, provider_samples=held_out, float_source=float_run
    )
    judged = judge_on_holdout(run, {}, inputs)
    if not judged.verdict.passed or judged.verdict.weak:
        return
    decide = partial(_is_doubted, run, inputs, judged)
    yield Case(f"{kind.name}, draw {seed}", kind.half, kept < _KEPT, decide)


def _is_doubted(run: Run, inputs: EvaluationInputs, judged: HoldoutVerdict) -> bool:
    """Return whether likely extremes make the verdict on a variant weak."""
    coverage = measure_coverage(inputs.split, inputs.source.inputs, {})
    split = replace(inputs.split, extremes=coverage.extremes)
    return bool(doubt_extremes(run, {}, replace(inputs, split=split), judged).verdict.weak)


def _draw_weights(rng: np.random.Generator) -> dict[str, Array]:
    hidden, outputs = 24, 6
    return {
        "a": rng.normal(0, _WIDTH**-0.5, (_WIDTH, hidden)),
        "b": rng.normal(0, hidden**-0.5, (hidden, outputs)),
        "c": rng.normal(1 / _WIDTH, 0.3 / _WIDTH, (_WIDTH, outputs)),
    }


def computed_model(nodes: str, weights: Mapping[str, Array]) -> onnx.ModelProto:
    """Return a model of any number of rows.

    Args:
        nodes: Text of nodes from `x` to `y`.
        weights: By name; weights that no node takes are left out.
    """
    model: onnx.ModelProto = parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> computed (float[N,M] x) => (float[N,K] y) '
        f"{{ {nodes} }}"
    )
    used = {name for node in model.graph.node for name in node.input}
    model.graph.initializer.extend(
        numpy_helper.from_array(value.astype(np.float32), name)
        for name, value in weights.items()
        if name in used
    )
    return model

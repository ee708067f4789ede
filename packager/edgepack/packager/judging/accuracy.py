"""How near a variant stays to the float model, and whether that is near enough.

What an output means decides how it is judged (`OutputKind`), and the float model's own outputs
tell: a distribution (not negative, sums to 1 over the last axis) or a row of scores is a
*decision*, judged by whether the same index wins; anything else is *values*, judged by the share
of their variance from sample to sample that is kept (cosine similarity and signal-to-noise look
fine while a speech detector loses its speech: they count what is the same in every sample). Where
a sample holds many decisions (the characters of a text line), each of them counts.
"""

import enum
import math
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from edgepack.errors import BuildError, EdgepackError
from edgepack.packager.judging.measure import Outputs, Run
from edgepack.packager.profile.schema import AccuracyGate

_ONE_MISS_FROM = 10
"""From this many samples on, one may differ whatever the budget: below 1/budget samples a single
coin flip would refuse a build."""

_VALUE_METRICS = ("explained_variance", "cosine")

_FEWEST_FOR_MEAN = 8
"""Samples from which on the mean over samples says something."""


class OutputKind(enum.Enum):
    """What an output means."""

    DECISION = "decision"
    SEQUENCE = "sequence"
    VALUES = "values"
    EXACT = "exact"


Metric = Callable[[Run], float]
"""A user's own measure of quality, greater is better: takes a function that runs one inference."""


@dataclass(frozen=True, kw_only=True)
class OutputDistance:
    """One output against the float model's, over all samples.

    Attributes:
        name: The output.
        kind: What it means.
        agreement: Share of samples whose decisions all agree (for values: 1.0).
        row_agreement: Share of rows (last axis) whose arg-max agrees; None for values.
        explained_variance: Share of the variance between samples that is kept: 1 - error / sum of
            squared distances to the mean over samples; 1.0 for no error, below 0 for worse than
            a constant.
        cosine: Cosine similarity, all samples flattened into one vector.
        worst_cosine: The same of the worst sample.
        nrmse: Root-mean-square error over the float output's root-mean-square.
        worst_nrmse: The same of the worst sample.
        sqnr_db: Signal to quantization noise, decibels.
        max_abs_error: Greatest absolute difference.
    """

    name: str
    kind: OutputKind
    agreement: float
    row_agreement: float | None
    explained_variance: float
    cosine: float
    worst_cosine: float
    nrmse: float
    worst_nrmse: float
    sqnr_db: float
    max_abs_error: float


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What the accuracy gate says.

    Attributes:
        metric: The metric that decided: of the output with the least to spare.
        value: Its value.
        float_value: The float model's value.
        budget: Least value that passes.
        passed: Whether every output is within its budget.
        spare: How much of what the budget allows is left: 1 at no loss, 0 at the budget.
        noise: Mean nrmse of the outputs, to order candidates that the metric finds equal.
        distances: By output; empty for a user's metric.
    """

    metric: str
    value: float
    float_value: float
    budget: float
    passed: bool
    spare: float
    noise: float
    distances: tuple[OutputDistance, ...] = field(default=())

    def beats(self, other: "Verdict") -> bool:
        """Whether this is the better candidate."""
        return (self.passed, self.spare, -self.noise) > (other.passed, other.spare, -other.noise)


def kinds_of_outputs(expected: Sequence[Outputs], gate: AccuracyGate) -> dict[str, OutputKind]:
    """What each output means, by the float model's own outputs.

    Args:
        expected: The float model's outputs, one dict a sample.
        gate: Its `metric` overrules: another metric than `auto` holds for every float output.
    """
    kinds = {}
    for name, first in expected[0].items():
        values = [outputs[name] for outputs in expected]
        if first.dtype.kind != "f":
            kinds[name] = OutputKind.EXACT
        elif gate.metric in _VALUE_METRICS or first.ndim == 0 or first.shape[-1] < 2:
            kinds[name] = OutputKind.VALUES
        elif gate.metric == "top1_agreement" or _are_decisions(values):
            kinds[name] = _decision_or_sequence(first)
        else:
            kinds[name] = OutputKind.VALUES
    return kinds


def _are_decisions(values: Sequence[npt.NDArray[np.generic]]) -> bool:
    """Distributions, or rows of scores that are no embeddings (those have unit length)."""
    if all(_is_distribution(value) for value in values):
        return True
    return values[0].ndim == 2 and not all(_is_unit_vector(value) for value in values)


def _decision_or_sequence(value: npt.NDArray[np.generic]) -> OutputKind:
    rows = value.size // value.shape[-1]
    return OutputKind.SEQUENCE if rows > value.shape[0] else OutputKind.DECISION


def _is_distribution(value: npt.NDArray[np.generic]) -> bool:
    wide = value.astype(np.float64)
    return bool(wide.min() >= -1e-6) and bool(np.allclose(wide.sum(axis=-1), 1.0, atol=1e-3))


def _is_unit_vector(value: npt.NDArray[np.generic]) -> bool:
    norms = np.linalg.norm(value.astype(np.float64), axis=-1)
    return bool(np.allclose(norms, 1.0, atol=1e-3))


class Reference:
    """The float model's outputs on some samples, which candidates are judged against.

    Args:
        expected: The float model's outputs, one dict a sample.
        gate: The budgets.
    """

    def __init__(self, expected: Sequence[Outputs], gate: AccuracyGate) -> None:
        self.expected = tuple(expected)
        self._gate = gate
        self.kinds = kinds_of_outputs(self.expected, gate)

    def judge(self, got: Sequence[Outputs]) -> Verdict:
        """Compares a candidate's outputs on the same samples, in the same order."""
        distances = self.distances(got)
        verdicts = [self._judge_output(distance) for distance in distances]
        worst = min(verdicts, key=lambda entry: (entry[3], entry[0]))
        metric, value, budget, spare = worst
        return Verdict(
            metric=metric,
            value=value,
            float_value=1.0,
            budget=budget,
            passed=all(entry[3] >= 0.0 for entry in verdicts),
            spare=spare,
            noise=float(np.mean([min(distance.nrmse, 1e6) for distance in distances])),
            distances=distances,
        )

    def distances(self, got: Sequence[Outputs]) -> tuple[OutputDistance, ...]:
        """Each output's distance to the float model's."""
        return tuple(
            measure_distance(
                name,
                kind,
                [outputs[name] for outputs in self.expected],
                [outputs[name] for outputs in got],
            )
            for name, kind in self.kinds.items()
        )

    def _judge_output(self, distance: OutputDistance) -> tuple[str, float, float, float]:
        """Metric, value, budget and what is to spare, of one output."""
        gate = self._gate
        if distance.kind is OutputKind.VALUES:
            if gate.metric == "cosine":
                return _spare("cosine", distance.cosine, gate.cosine_min)
            variance = distance.explained_variance
            return _spare("explained_variance", variance, gate.explained_variance_min)
        if distance.kind is OutputKind.SEQUENCE:
            agreement = distance.row_agreement or 0.0
            return _spare("sequence_agreement", agreement, gate.sequence_agreement_min)
        budget = self._with_one_miss(gate.top1_agreement_min)
        return _spare("top1_agreement", distance.agreement, budget)

    def _with_one_miss(self, budget: float) -> float:
        count = len(self.expected)
        if count < _ONE_MISS_FROM:
            return budget
        return min(budget, 1.0 - 1.0 / count)


def _spare(metric: str, value: float, budget: float) -> tuple[str, float, float, float]:
    allowed = max(1.0 - budget, 1e-9)
    return metric, value, budget, (value - budget + 1e-12) / allowed


def metric_name(metric: Metric) -> str:
    """`module:function`, for reports."""
    return f"{metric.__module__}:{getattr(metric, '__qualname__', type(metric).__name__)}"


def evaluate_metric(metric: Metric, run: Run) -> float:
    """Calls a user's metric.

    Raises:
        BuildError: It raised, or returned something that is no finite number.
    """
    name = metric_name(metric)
    try:
        value = metric(run)
    except EdgepackError:
        raise
    except Exception as error:  # foreign code
        where = traceback.extract_tb(error.__traceback__)[-1]
        raise BuildError(
            f"the metric {name} raised {type(error).__name__}: {error}",
            found_in=f"{where.filename}, line {where.lineno}",
            remedy="call it with a function that runs the float model, and see that it works",
        ) from error
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise BuildError(
            f"the metric {name} returned {value!r}, which is no finite number",
            remedy="return one number, greater for a better model",
        )
    return number


def judge_metric(metric: Metric, run: Run, float_value: float, gate: AccuracyGate) -> Verdict:
    """Judges a candidate by the user's own metric.

    Args:
        metric: The metric.
        run: Runs the candidate.
        float_value: The float model's value.
        gate: Its `user_metric_kept_min` is the share of `float_value` that must be kept.

    Returns:
        The verdict.

    Raises:
        BuildError: See `evaluate_metric`.
    """
    value = evaluate_metric(metric, run)
    budget = float_value * gate.user_metric_kept_min
    spare = (value - budget) / max(abs(float_value - budget), 1e-9)
    return Verdict(
        metric=metric_name(metric),
        value=value,
        float_value=float_value,
        budget=budget,
        passed=value >= budget,
        spare=spare,
        noise=0.0,
    )


def measure_distance(
    name: str,
    kind: OutputKind,
    expected: Sequence[npt.NDArray[np.generic]],
    got: Sequence[npt.NDArray[np.generic]],
) -> OutputDistance:
    """Measures one output over all samples.

    Args:
        name: The output.
        kind: What it means.
        expected, got: The float model's and the candidate's values, one array a sample.
    """
    dots, sizes, norms, errors = [], [], [], []
    agreed = rows_agreed = rows = 0
    greatest = 0.0
    for want, have in zip(expected, got, strict=True):
        a, b = _comparable(want, have)
        dots.append(float(a @ b))
        sizes.append(float(a @ a))
        norms.append(float(b @ b))
        errors.append(float((b - a) @ (b - a)))
        greatest = max(greatest, float(np.abs(b - a).max(initial=0.0)))
        same = _same_decisions(kind, want, have)
        agreed += bool(same.all())
        rows_agreed += int(same.sum())
        rows += same.size
    per_sample = list(zip(dots, sizes, norms, errors, strict=True))
    whole = _ratios(sum(dots), sum(sizes), sum(norms), sum(errors))
    each = [_ratios(*entry) for entry in per_sample]
    is_values = kind is OutputKind.VALUES
    variance = _variance_between(expected)
    return OutputDistance(
        name=name,
        kind=kind,
        agreement=1.0 if is_values else agreed / len(expected),
        row_agreement=None if is_values or kind is OutputKind.EXACT else rows_agreed / rows,
        explained_variance=1.0 - sum(errors) / variance if sum(errors) else 1.0,
        cosine=whole[0],
        worst_cosine=min(entry[0] for entry in each),
        nrmse=whole[1],
        worst_nrmse=max(entry[1] for entry in each),
        sqnr_db=-20.0 * math.log10(max(whole[1], 1e-10)),
        max_abs_error=greatest,
    )


def _variance_between(values: Sequence[npt.NDArray[np.generic]]) -> float:
    """Sum of squared distances to the mean over samples, element by element.

    Where samples have different shapes, or there are too few for a mean, the mean over all
    elements takes its place. Never 0.
    """
    size = sum(float(np.sum(value.astype(np.float64) ** 2)) for value in values)
    if len(values) >= _FEWEST_FOR_MEAN and len({value.shape for value in values}) == 1:
        mean = np.mean([value.astype(np.float64) for value in values], axis=0)
        variance = size - len(values) * float(np.sum(mean**2))
    else:
        count = sum(value.size for value in values)
        total = sum(float(np.sum(value.astype(np.float64))) for value in values)
        variance = size - total**2 / max(count, 1)
    return max(variance, 1e-6 * size, 1e-12)


def _comparable(
    want: npt.NDArray[np.generic], have: npt.NDArray[np.generic]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Both as vectors; what cannot be compared (shape, NaN) counts as infinitely wrong zeros."""
    a = want.astype(np.float64).ravel()
    if have.shape != want.shape:
        return a, np.zeros_like(a)
    b = have.astype(np.float64).ravel()
    finite = np.isfinite(a)
    a, b = a[finite], b[finite]
    return a, (b if np.isfinite(b).all() else np.zeros_like(a))


def _same_decisions(
    kind: OutputKind, want: npt.NDArray[np.generic], have: npt.NDArray[np.generic]
) -> npt.NDArray[np.bool_]:
    if want.shape != have.shape:
        return np.zeros(1, dtype=np.bool_)
    if kind is OutputKind.VALUES:
        return np.ones(1, dtype=np.bool_)
    if kind is OutputKind.EXACT:
        return np.atleast_1d(np.array_equal(want, have))
    if not np.isfinite(have.astype(np.float64)).all():
        return np.zeros(1, dtype=np.bool_)
    return np.atleast_1d(want.argmax(axis=-1) == have.argmax(axis=-1)).ravel()


def _ratios(dot: float, size: float, norm: float, error: float) -> tuple[float, float]:
    """Cosine similarity and relative root-mean-square error from sums of products."""
    if error == 0.0:
        return 1.0, 0.0
    cosine = dot / math.sqrt(size * norm) if size > 0.0 and norm > 0.0 else 0.0
    return cosine, math.sqrt(error / size) if size > 0.0 else 1.0

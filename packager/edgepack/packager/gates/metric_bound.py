"""Bound of a user's metric on other samples, from its values for mixed outputs.

A metric runs the model by itself, so its samples cannot be left out in turn. But each of its
inferences can be answered by either model. Let one half of the inferences, drawn by chance, get the
variant's outputs, the rest the float model's, and then the other way round. If an inference adds
d_i to the metric, the difference of both values is a sum of ±d_i: its mean square is the sum of
d_i², the variance of the whole difference D but for D²/n.
"""

import math

import msgspec
import numpy as np

from edgepack.errors import BuildError
from edgepack.number_format import format_metric
from edgepack.packager.gates.user_metric import Metric, evaluate_metric, metric_name
from edgepack.packager.gates.verdict import Verdict
from edgepack.packager.runtime.model_run import Run
from edgepack.packager.tensors.sequence import Feeds, digest_of
from edgepack.tasks.arrays import FEWEST_FOR_SPREAD, Outputs
from edgepack.tasks.intervals import share_low

_PAIRS = 8
"""Values for mixed outputs, twice: the metric runs as often as in a short search."""

_QUANTILE = 1.86
"""Student's t with 8 degrees of freedom, one-sided, 95 %."""

_MOST_BYTES = 2**28
"""Outputs of both models that are kept in memory."""

_SAME = 1e-9
"""Share by which a repeated sum of 64-bit floats may differ."""


class MetricBound(msgspec.Struct, frozen=True):
    """Knowledge of a metric's value on other samples.

    Attributes:
        words: The bound in a sentence; "" without one.
        doubt: Why the value itself is weak evidence; "" without a reason.
    """

    words: str = ""
    doubt: str = ""


class _UnknownFeedsError(BuildError):
    """The metric runs the model on other inputs than before."""


class _Recorder:
    """Answers the inferences of a metric, and remembers both models' answers.

    Args:
        float_run, run: The models.
    """

    def __init__(self, float_run: Run, run: Run) -> None:
        self._float_run, self._run = float_run, run
        self._size = 0
        self.answers: dict[bytes, tuple[Outputs, Outputs]] = {}
        self.is_whole = True

    def record(self, feeds: Feeds) -> Outputs:
        """Run both models; return the variant's outputs."""
        got = self._run(feeds)
        key = digest_of(feeds)
        if self.is_whole and key not in self.answers:
            expected = self._float_run(feeds)
            self._size += sum(one.nbytes for each in (expected, got) for one in each.values())
            self.is_whole = self._size <= _MOST_BYTES
            self.answers[key] = expected, got
        return got

    def replay(self, picks: dict[bytes, bool]) -> Run:
        """Return a run that answers with the variant's outputs, or with the float model's.

        Args:
            picks: By digest of the inputs, whether the variant answers.
        """

        def answer(feeds: Feeds) -> Outputs:
            key = digest_of(feeds)
            if key not in self.answers:
                raise _UnknownFeedsError("the metric runs the model on other inputs than before")
            return self.answers[key][picks[key]]

        return answer


def bound_metric(metric: Metric, float_run: Run, run: Run, verdict: Verdict) -> MetricBound:
    """Bound a metric's value, one-sided, 95 %, and find out whether the value can be repeated.

    Args:
        metric: The metric.
        float_run, run: The float model and the variant.
        verdict: The metric's verdict on the variant.

    Returns:
        The bound; empty where inferences are too few, outputs too large or equal, or where inputs
        depend on earlier outputs.
    """
    recorder = _Recorder(float_run, run)
    evaluate_metric(metric, recorder.record)
    answers = recorder.answers
    if not recorder.is_whole or not any(map(_differ, answers.values())):
        return MetricBound()
    name = metric_name(metric)
    try:
        again = evaluate_metric(metric, recorder.replay(dict.fromkeys(answers, True)))
    except _UnknownFeedsError:
        return MetricBound(doubt=_doubt(f"the metric {name} runs other inputs each time"))
    if not math.isclose(again, verdict.value, rel_tol=_SAME):
        told = f"{format_metric(verdict.value)} and then {format_metric(again)}"
        return MetricBound(doubt=_doubt(f"the metric {name} gives the same outputs {told}"))
    if len(answers) < FEWEST_FOR_SPREAD:
        return MetricBound()
    try:
        squares = [
            (evaluate_metric(metric, one) - evaluate_metric(metric, other)) ** 2
            for one, other in _mixtures(recorder)
        ]
    except BuildError:  # inputs depend on earlier outputs, or mixed outputs are of no use
        return MetricBound()
    count, lost = len(answers), verdict.float_value - verdict.value
    if any(squares):
        spread = math.sqrt(max(float(np.mean(squares)) - lost**2 / count, 0.0))
        low = verdict.value - _QUANTILE * spread
    else:
        low = verdict.value * share_low(1.0, count)
    asked = format_metric(verdict.budget)
    proof = f", which does not prove the budget of {asked}" if low < verdict.budget else ""
    return MetricBound(
        words=f"{name} is {format_metric(verdict.value)} on its {count} inferences (float model "
        f"{format_metric(verdict.float_value)}): with 95 % confidence at least "
        f"{format_metric(max(low, 0.0))} on samples like these{proof if verdict.passed else ''}."
    )


def _doubt(reason: str) -> str:
    return (
        f"{reason}: its value differs by chance. To settle it: the same samples in each call, and "
        "no random numbers without a fixed seed"
    )


def _differ(pair: tuple[Outputs, Outputs]) -> bool:
    expected, got = pair
    return any(
        not np.array_equal(expected[name], value, equal_nan=value.dtype.kind == "f")
        for name, value in got.items()
        if name in expected
    )


def _mixtures(recorder: _Recorder) -> list[tuple[Run, Run]]:
    """Return pairs of runs, in each of which the variant answers one half and the other half."""
    generator = np.random.default_rng(0)
    keys = list(recorder.answers)
    pairs = []
    for _ in range(_PAIRS):
        half = generator.permutation(len(keys)) < len(keys) / 2
        picks = dict(zip(keys, half.tolist(), strict=True))
        others = {key: not pick for key, pick in picks.items()}
        pairs.append((recorder.replay(picks), recorder.replay(others)))
    return pairs

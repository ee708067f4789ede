"""The value of a user's metric gets a bound, or a doubt, from mixed outputs of both models."""

import itertools
from functools import partial

import numpy as np

from edgepack.packager.gates.metric_bound import MetricBound, bound_metric
from edgepack.packager.gates.user_metric import Metric, evaluate_metric, judge_metric
from edgepack.packager.runtime.model_run import Run
from edgepack.packager.tensors.sequence import Feeds
from edgepack.tasks.arrays import Floats, Outputs

_COUNT = 200


def _model(answers: Floats) -> Run:
    """Return a model that looks its answer up by the number of the sample."""

    def run(feeds: Feeds) -> Outputs:
        return {"y": np.array([answers[int(feeds["x"][0])]])}

    return run


def _accuracy(truth: Floats, run: Run) -> float:
    said = [run({"x": np.array([number])})["y"][0] for number in range(len(truth))]
    return float(np.mean(np.array(said) == truth))


def _bound(metric: Metric, float_run: Run, run: Run) -> MetricBound:
    verdict = judge_metric(metric, run, evaluate_metric(metric, float_run), {})
    return bound_metric(metric, float_run, run, verdict)


def _low(found: MetricBound) -> float:
    return float(found.words.split("at least ")[1].split(" ")[0])


def test_the_bound_of_an_accuracy_covers_that_of_all_samples() -> None:
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(60):
        truth, drawn = np.zeros(_COUNT), rng.random(_COUNT)
        before = np.where(drawn < 0.1, 1.0, 0.0)  # 90 % are right, and of the variant 88 %
        after = np.where((drawn < 0.06) | (drawn > 0.94), 1.0, 0.0)
        found = _bound(partial(_accuracy, truth), _model(before), _model(after))
        assert not found.doubt
        covered += _low(found) <= (1.0 - before.mean()) - 0.02
    assert covered >= 54, "nine of ten, at 95 %"


def test_the_bound_says_whether_the_budget_is_proven() -> None:
    truth = np.zeros(_COUNT)
    lost = np.where(np.arange(_COUNT) < 1, 1.0, 0.0)

    def metric(run: Run) -> float:
        return _accuracy(truth, run)

    found = _bound(metric, _model(truth), _model(lost))
    assert ":test_the_bound_says_whether_the_budget_is_proven.<locals>.metric is 0.9950" in (
        found.words
    )
    assert "on its 200 inferences (float model 1.0000)" in found.words
    assert "which does not prove the budget of 0.9900" in found.words
    assert 0.98 < _low(found) < 0.99
    assert _bound(metric, _model(truth), _model(truth)) == MetricBound(), "nothing differs"
    surer = _bound(metric, lambda feeds: {"y": np.array([0.0])}, _model(np.full(_COUNT, -0.0)))
    assert surer == MetricBound(), "equal numbers"
    few = np.zeros(7)
    assert _bound(lambda run: 0.5 + _accuracy(few, run), _model(few), _model(few + 1)).words == ""


def test_outputs_that_differ_without_a_cost_are_as_uncertain_as_their_count_is_low() -> None:
    def metric(run: Run) -> float:
        said = [run({"x": np.array([number])})["y"][0] > 0 for number in range(30)]
        return float(np.mean(said))

    found = _bound(metric, _model(np.full(30, 1.0)), _model(np.full(30, 0.9)))
    assert 0.90 < _low(found) < 0.93, "the lower end of 30 of 30"


def test_a_metric_that_differs_by_chance_is_doubted() -> None:
    truth, other = np.zeros(20), np.ones(20)
    rng, calls = np.random.default_rng(0), itertools.count(1000)

    def noisy(run: Run) -> float:
        return 1.0 + _accuracy(truth, run) + 0.01 * float(rng.random())

    def drawn(run: Run) -> float:
        run({"x": np.array([0]), "number": np.array([next(calls)])})
        return 1.0 + _accuracy(truth, run)

    assert "gives the same outputs" in _bound(noisy, _model(truth), _model(other)).doubt
    assert "runs other inputs each time" in _bound(drawn, _model(truth), _model(other)).doubt


def test_inputs_that_depend_on_outputs_leave_no_bound_and_no_doubt() -> None:
    def chain(run: Run) -> float:
        place = 0
        for _ in range(10):
            place = int(run({"x": np.array([place])})["y"][0])
        return 1.0 + place

    numbers = np.arange(_COUNT, dtype=np.float64)
    found = _bound(chain, _model(numbers + 1), _model(numbers + 2))
    assert found == MetricBound()

"""Judging candidates: what plainly fails is not run to the end."""

import numpy as np
import pytest
from msgspec.structs import replace

from edgepack.packager.gates.chains import STEPS
from edgepack.packager.runtime.model_run import Run
from edgepack.packager.search.judge import NEAR_SPARE, CandidateJudge
from edgepack.packager.tensors.sequence import Feeds, Samples, State
from edgepack.tasks.arrays import Outputs
from edgepack.tasks.intervals import share_low
from tests.unit.packager_passes.declaring import declare

_COUNT = 40
_SIZE = 9.0
"""Of the scores, so that their winners are clear."""


class _Model:
    """Answers with its input, but for the samples in which it errs; counts its runs."""

    def __init__(self, *wrong: int) -> None:
        self._wrong = wrong
        self.runs = 0

    def __call__(self, feeds: Feeds) -> Outputs:
        self.runs += 1
        scores = feeds["x"][:, ::-1] if int(feeds["number"][0]) in self._wrong else feeds["x"]
        return {"y": scores}


def _samples(states: tuple[State, ...] = ()) -> Samples:
    scores = np.random.default_rng(0).normal(0, _SIZE, size=(_COUNT, 1, 4)).astype(np.float32)
    return Samples(
        count=_COUNT,
        read=lambda index: {"x": scores[index], "number": np.array([index])},
        source="made",
        states=states,
    )


_FIRST = tuple(number * _COUNT // 16 for number in range(16))
"""Samples that a candidate runs on first: evenly spread."""

_NEXT = tuple(number * _COUNT // 32 for number in range(1, 32, 2))


@pytest.mark.parametrize(
    ("wrong", "expected_runs"),
    [
        ((), 40),
        (_FIRST[:1], 40),
        (_FIRST[:3], 40),
        (_FIRST[:4], 16),
        ((*_FIRST[:3], _NEXT[0]), 32),
        (_NEXT[:4], 32),
        ((4, 9, 14, 19), 40),
    ],
)
def test_a_candidate_is_given_up_when_it_fails_by_far_whatever_the_other_samples_say(
    wrong: tuple[int, ...], expected_runs: int
) -> None:
    judge = CandidateJudge(_Model(), _samples(), {}, None)
    candidate = _Model(*wrong)
    verdict = judge.judge(candidate)
    assert candidate.runs == expected_runs
    assert verdict.passed == (len(wrong) <= 1), "one of 40 may always differ"
    assert verdict.given_up_after == (None if expected_runs == 40 else expected_runs)
    assert verdict.value == 1.0 - len(wrong) / expected_runs
    assert (verdict.spare < NEAR_SPARE) == (len(wrong) > 3), "four of 40 are more than thrice one"


class _Noisy(_Model):
    """Answers with values that are off by as much in every sample."""

    def __init__(self, noise: float) -> None:
        super().__init__()
        self._noise = np.random.default_rng(1).normal(0, _SIZE, size=(_COUNT, 1, 4)) * noise

    def __call__(self, feeds: Feeds) -> Outputs:
        value = super().__call__(feeds)["y"] + self._noise[int(feeds["number"][0])]
        return {"y": np.tile(value.astype(np.float32).reshape(1, 2, 2), (1, 4, 4))}


@pytest.mark.parametrize(
    ("noise", "at_least", "expected_runs"),
    [
        (0.1, 0.0, 40),  # keeps 99 % of the variance, within the budget
        (0.16, 0.0, 40),  # 97.5 %: a little too little, and 16 samples do not tell for sure
        (0.25, 0.0, 16),  # 94 %: no other samples like these make up for that …
        (0.25, NEAR_SPARE, 40),  # … but it is near, and the best there is so far
        (0.5, NEAR_SPARE, 16),
    ],
)
def test_what_nearly_certainly_fails_by_more_than_matters_is_not_run_on_the_other_samples(
    noise: float, at_least: float, expected_runs: int
) -> None:
    samples = replace(_samples(), description=declare(y="values"))
    judge = CandidateJudge(_Noisy(0.0), samples, {}, None)
    candidate = _Noisy(noise)
    verdict = judge.judge(candidate, at_least=at_least)
    assert candidate.runs == expected_runs
    assert verdict.given_up_after == (None if expected_runs == 40 else expected_runs)
    assert verdict.passed == (noise < 0.14)


def test_a_chain_that_loses_everything_is_given_up_after_sixteen_chains() -> None:
    class _State(_Model):
        def __call__(self, feeds: Feeds) -> Outputs:
            said = super().__call__(feeds)["y"]
            return {"y": said.reshape(1, 4, 1), "state_out": feeds["x"]}

    samples = _samples((State(input="state", output="state_out"),))
    judge = CandidateJudge(_State(), samples, {}, None)
    lost, fine = _State(*range(_COUNT)), _State()
    assert judge.judge(lost).given_up_after == 16
    assert lost.runs == 16 * STEPS
    assert judge.judge(fine).passed
    assert fine.runs == _COUNT * STEPS


def test_a_users_metric_judges_beside_what_it_gives_the_float_model() -> None:
    def first_score(run: Run) -> float:
        return float(abs(run(_samples().read(0))["y"][0, 0]))

    float_model = _Model()
    judge = CandidateJudge(float_model, _samples(), {}, first_score)
    verdict = judge.judge(_Model())
    assert verdict.float_value == verdict.value == first_score(float_model)
    assert verdict.passed
    assert judge.judge(_Model(0)).value != verdict.value


def test_a_described_state_is_judged_by_the_outputs_that_it_changes() -> None:
    def run(feeds: Feeds) -> Outputs:
        return {"y": feeds["x"], "next": np.add(feeds["state"], 1.0)}

    samples = _samples((State(input="state", output="next"),))
    read = samples.read
    fed = replace(
        samples,
        read=lambda index: {**read(index), "state": np.zeros((1, 4), np.float32)},
        description=declare(next="unknown"),
    )
    judge = CandidateJudge(run, fed, {}, None)
    assert judge.reference.description.outputs == ("next", "y")
    verdict = judge.judge(run)
    assert verdict.passed
    assert [entry.task for entry in verdict.agreements] == ["classification"]
    assert verdict.low == pytest.approx(share_low(1.0, samples.count)), "a chain counts once"

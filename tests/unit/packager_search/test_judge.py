"""Judging candidates: what plainly fails is not run to the end."""

import numpy as np
import pytest

from edgepack.packager.judging.chains import STEPS
from edgepack.packager.judging.measure import Outputs
from edgepack.packager.profile.schema import AccuracyGate
from edgepack.packager.samples.sequence import Feeds, Samples, State
from edgepack.packager.search.judge import NEAR_SPARE, CandidateJudge

_COUNT = 40
_GATE = AccuracyGate(top1_agreement_min=0.98, explained_variance_min=0.98)


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
    scores = np.random.default_rng(0).normal(size=(_COUNT, 1, 4)).astype(np.float32)
    return Samples(
        count=_COUNT,
        read=lambda index: {"x": scores[index], "number": np.array([index])},
        source="made",
        states=states,
    )


@pytest.mark.parametrize(
    ("wrong", "expected_runs"),
    [
        ((), 40),
        ((3,), 40),
        ((3, 5, 11), 40),
        ((1, 3, 5, 11), 16),
        ((1, 3, 5, 31), 32),
        ((32, 33, 34, 35, 36, 37), 40),
    ],
)
def test_a_candidate_is_given_up_when_it_fails_by_far_whatever_the_other_samples_say(
    wrong: tuple[int, ...], expected_runs: int
) -> None:
    judge = CandidateJudge(_Model(), _samples(), _GATE, None)
    candidate = _Model(*wrong)
    verdict = judge.judge(candidate)
    assert candidate.runs == expected_runs
    assert verdict.passed == (len(wrong) <= 1), "one of 40 may always differ"
    assert verdict.given_up_after == (None if expected_runs == 40 else expected_runs)
    assert verdict.value == 1.0 - len(wrong) / expected_runs
    assert (verdict.spare < NEAR_SPARE) == (len(wrong) > 3), "four of 40 are more than thrice one"


def test_a_chain_that_loses_everything_is_given_up_after_sixteen_chains() -> None:
    class _State(_Model):
        def __call__(self, feeds: Feeds) -> Outputs:
            said = super().__call__(feeds)["y"]
            return {"y": said.reshape(1, 4, 1), "state_out": feeds["x"]}

    samples = _samples((State(input="state", output="state_out"),))
    judge = CandidateJudge(_State(), samples, _GATE, None)
    lost, fine = _State(*range(_COUNT)), _State()
    assert judge.judge(lost).given_up_after == 16
    assert lost.runs == 16 * STEPS
    assert judge.judge(fine).passed
    assert fine.runs == _COUNT * STEPS

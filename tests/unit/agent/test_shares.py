"""The sequential test by which a device rolls a release back: its table, computed independently."""

import math

import pytest

from edgepack.agent.watch.evidence import DISAGREEMENT_ALPHA as ALPHA
from edgepack.agent.watch.shares import is_beyond_doubt, log_evidence

LIMIT = 0.02
ROLLED_BACK_FROM = (
    *((3, 3), (3, 4), (4, 5), (4, 10), (6, 20), (7, 30)),
    *((9, 60), (11, 100), (21, 300), (45, 1000)),
)
"""The fewest disagreements of so many pairs that are beyond doubt."""


def log_upper_tail(a: float, b: float, x: float) -> float:
    """Return log of the integral of q**(a-1) (1-q)**(b-1) from x to 1: Lentz's fraction."""
    log_beta = math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)

    def lower(a: float, b: float, x: float) -> float:
        front = math.exp(a * math.log(x) + b * math.log1p(-x) - log_beta) / a
        c, d = 1.0, 1.0 / (1.0 - (a + b) * x / (a + 1.0))
        found = d
        for m in range(1, 2000):
            for step in (
                m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
                -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
            ):
                d = 1.0 / (1.0 + step * d)
                c = 1.0 + step / c
                found *= c * d
            if abs(c * d - 1.0) < 1e-14:
                break
        return front * found

    if x < (a + 1) / (a + b + 2):
        return math.log1p(-lower(a, b, x)) + log_beta
    return math.log(lower(b, a, 1.0 - x)) + log_beta


def log_evidence_by_beta_functions(disagreed: int, compared: int) -> float:
    found = log_upper_tail(disagreed + 0.5, compared - disagreed + 0.5, LIMIT)
    found -= log_upper_tail(0.5, 0.5, LIMIT)
    return found - disagreed * math.log(LIMIT) - (compared - disagreed) * math.log1p(-LIMIT)


@pytest.mark.parametrize(("disagreed", "compared"), ROLLED_BACK_FROM)
def test_table_of_rollbacks_by_disagreements(disagreed: int, compared: int) -> None:
    assert is_beyond_doubt(disagreed, compared, LIMIT, ALPHA)
    assert not is_beyond_doubt(disagreed - 1, compared, LIMIT, ALPHA)
    assert log_evidence_by_beta_functions(disagreed, compared) >= math.log(1 / ALPHA)
    assert log_evidence_by_beta_functions(disagreed - 1, compared) < math.log(1 / ALPHA)


@pytest.mark.parametrize("compared", [1, 7, 100, 1000, 10_000])
@pytest.mark.parametrize("share", [0.0, 0.02, 0.05, 0.5, 1.0])
def test_evidence_equals_that_by_beta_functions(compared: int, share: float) -> None:
    disagreed = round(share * compared)
    expected = log_evidence_by_beta_functions(disagreed, compared)
    assert log_evidence(disagreed, compared, LIMIT) == pytest.approx(expected, rel=1e-4, abs=1e-2)


def test_two_pairs_alone_are_never_beyond_doubt() -> None:
    assert not is_beyond_doubt(0, 0, LIMIT, ALPHA)
    assert not is_beyond_doubt(2, 2, LIMIT, ALPHA)


def test_of_a_limit_of_1_nothing_is_beyond_doubt() -> None:
    assert not is_beyond_doubt(1000, 1000, 1.0, ALPHA)
    assert log_evidence(1000, 1000, 1.0) == -math.inf

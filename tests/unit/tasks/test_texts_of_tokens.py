"""Accuracy of texts with answers: each token forced, and what a device makes of it."""

import math
from typing import Any

import numpy as np
import pytest

from edgepack.bundle.golden import compare_outputs
from edgepack.bundle.metadata import GoldenAgreement
from edgepack.tasks.description import TaskOutputs
from edgepack.tasks.details import DIVERGENCE, FLIPPED_TOKENS, FORCED_TOKENS, PERPLEXITY_RATIO
from edgepack.tasks.tokens.texts import compare_text, measure_texts
from tests.simulators.late_modules import late

stats = late("scipy.stats")

_TOKENS = TaskOutputs(task="tokens", outputs=("logits",))


def _scores(seed: int, rows: int = 9, vocabulary: int = 50) -> Any:
    return np.random.default_rng(seed).normal(0.0, 3.0, (1, rows, vocabulary)).astype(np.float32)


def _shares(scores: Any) -> Any:
    grown = np.exp(scores[0].astype(np.float64))
    return grown / grown.sum(axis=-1, keepdims=True)


def _noisy(scores: Any, size: float, seed: int = 1) -> Any:
    noise = np.random.default_rng(seed).normal(0.0, size, scores.shape)
    return (scores + noise).astype(np.float32)


def test_numbers_are_those_of_the_definitions() -> None:
    want, have, answer = _scores(0), _noisy(_scores(0), 0.3), np.arange(8)
    measured = measure_texts([compare_text(want, have, answer)], "logits")
    first, second = _shares(want), _shares(have)
    nats = np.mean(np.log(first[np.arange(8), answer]) - np.log(second[np.arange(8), answer]))
    details = measured.details
    assert details[PERPLEXITY_RATIO] == pytest.approx(math.exp(nats))
    assert details[DIVERGENCE] == pytest.approx(stats.entropy(first, second, axis=1).mean())
    assert details[FORCED_TOKENS] == pytest.approx(np.mean(first.argmax(1) == second.argmax(1)))
    right = [shares[:8].argmax(1) == answer for shares in (first, second)]
    assert details[FLIPPED_TOKENS] == pytest.approx(np.mean(right[0] != right[1]))


def test_one_percent_is_lost_at_a_ratio_of_1_01_or_at_5_thousandths_of_a_nat() -> None:
    measures = measure_texts([compare_text(_scores(0), _scores(0), np.arange(8))]).measures
    assert [measure.kept for measure in measures] == [1.0, 1.0]
    ratio, likelihood = (measure.scale for measure in measures)
    assert ratio.kept(1 / 1.01) == pytest.approx(0.99)
    assert likelihood.kept(math.exp(-0.005)) == pytest.approx(0.99)


def test_intervals_of_texts_hold_the_true_value_as_often_as_they_say() -> None:
    """Texts are easy or hard as a whole: their tokens are not independent."""
    rng = np.random.default_rng(3)
    want = _scores(0, rows=6, vocabulary=12)
    sizes = [0.1 + 0.01 * (seed % 20) for seed in range(400)]
    noisy = [_noisy(want, size, seed) for seed, size in enumerate(sizes)]
    pool = [compare_text(want, have, np.arange(5)) for have in noisy]
    truth = measure_texts(pool).details[DIVERGENCE]
    held = 0
    for _ in range(100):
        chosen = rng.choice(len(pool), 40)
        details = measure_texts([pool[index] for index in chosen]).details
        held += details[f"{DIVERGENCE}_low"] <= truth <= details[f"{DIVERGENCE}_high"]
    assert 88 <= held < 100


def test_few_tokens_without_a_flip_leave_some_open() -> None:
    texts = [compare_text(_scores(seed), _scores(seed), np.arange(8)) for seed in range(5)]
    details = measure_texts(texts).details
    assert details[FLIPPED_TOKENS] == details[f"{FLIPPED_TOKENS}_low"] == 0.0
    assert 0.05 < details[f"{FLIPPED_TOKENS}_high"] < 0.3
    assert details[f"{FORCED_TOKENS}_low"] < 1.0 == details[f"{FORCED_TOKENS}_high"]


def test_scores_that_are_not_finite_are_the_worst() -> None:
    want = _scores(0)
    have = np.full_like(want, np.nan)
    measured = measure_texts([compare_text(want, have, np.arange(8))])
    assert measured.value < 0.5
    assert math.isfinite(measured.value)


def _device(want: Any, have: Any) -> bool:
    """Return whether a device's scores of a whole text pass, of which the last are golden."""
    golden = [{"logits": want[:, -4:]}]
    agreement = GoldenAgreement(part=_TOKENS, keep=0.98)
    return compare_outputs(golden, [{"logits": have}], {}, [agreement]).right


def test_a_device_may_prefer_another_token_where_the_float_model_hesitates() -> None:
    want = _scores(5)
    order = np.argsort(want[0], axis=-1)
    for row in range(9):  # the two best tokens are all but equal in every row
        want[0, row, order[row, -2]] = want[0, row, order[row, -1]] - 1e-3
    have = want.copy()
    for row in range(9):
        have[0, row, order[row, -2]] += 2e-3
    assert (want.argmax(-1) != have.argmax(-1)).all()
    assert _device(want, have)


def test_a_broken_device_is_rejected_even_if_it_prefers_the_right_tokens() -> None:
    want = _scores(5)
    assert not _device(want, np.roll(want, 1, axis=-1))
    flat = 0.2 * want
    assert (flat.argmax(-1) == want.argmax(-1)).all()
    assert not _device(want, flat)


def test_a_device_with_fewer_rows_than_expected_is_rejected() -> None:
    want = _scores(5)
    assert not _device(want, want[:, -2:])

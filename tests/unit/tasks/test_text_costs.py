"""What another reading costs: little where the float model hesitated, all where it did not."""

import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

from edgepack.tasks.text.costs import Cost, expected_cost, probability, significant_net_edits
from edgepack.tasks.text.decoding import read_text
from edgepack.tasks.text.edits import edit_distance
from edgepack.tasks.text.head import TextHead
from edgepack.tasks.text.measure import TASK

_HEAD = TextHead(output="said", blank=0)

Outputs = dict[str, npt.NDArray[np.generic]]


def _shares(seed: int, steps: int, classes: int) -> npt.NDArray[np.float64]:
    grown = np.exp(3.0 * np.random.default_rng(seed).normal(size=(steps, classes)))
    return np.asarray(grown / grown.sum(axis=-1, keepdims=True))


def _say(text: Sequence[int]) -> npt.NDArray[np.float64]:
    """A step for each class, a blank between any two."""
    steps = [0, *(step for kind in text for step in (kind, 0))]
    return np.eye(4)[steps][None]


def _by_all_ways(shares: npt.NDArray[np.float64]) -> dict[tuple[int, ...], float]:
    """How probable each text is: the sum over every choice of a class at every step."""
    texts: dict[tuple[int, ...], float] = {}
    for way in itertools.product(range(shares.shape[1]), repeat=len(shares)):
        text = tuple(kind for kind, _ in itertools.groupby(way) if kind)
        texts[text] = texts.get(text, 0.0) + float(np.prod(shares[range(len(way)), way]))
    return texts


@pytest.mark.parametrize("seed", range(6))
def test_an_edit_costs_what_it_adds_to_those_of_all_that_may_stand_there(seed: int) -> None:
    shares = _shares(seed, steps=6, classes=3)
    outputs: Outputs = {"said": shares[None]}
    own = read_text(_HEAD, outputs)
    probable = _by_all_ways(shares)
    assert sum(probable.values()) == pytest.approx(1.0)
    for other in (own[1:], (*own, 1), (*own[:-1], own[-1] % 2 + 1)):
        more = sum(
            share * (edit_distance(other, text) - edit_distance(own, text))
            for text, share in probable.items()
        )
        less = probable.get(own, 0.0) - probable.get(other, 0.0)
        cost = expected_cost(_HEAD, outputs, own, other)
        assert cost.edits == pytest.approx(max(more, 0.0), abs=0.2)
        assert cost.whole == pytest.approx(max(less, 0.0))
    assert expected_cost(_HEAD, outputs, own, own) == Cost(edits=0.0)


@pytest.mark.parametrize("ignores_spaces", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_every_text_is_as_probable_as_all_ways_to_say_it(seed: int, ignores_spaces: bool) -> None:
    shares = _shares(seed, steps=6, classes=4)
    head = TextHead(output="said", blank=0, spaces=(3,), ignores_spaces=ignores_spaces)
    texts: dict[tuple[int, ...], float] = {}
    for text, share in _by_all_ways(shares).items():
        read = read_text(head, {"said": _say(text)})
        texts[read] = texts.get(read, 0.0) + share
    assert () in texts
    for text, share in texts.items():
        assert probability(head, shares, text) == pytest.approx(share)


def test_an_edit_costs_little_where_the_float_model_hesitated_alone() -> None:
    shares = np.full((1, 12, 5), 1e-4)
    shares[0, ::2, 1], shares[0, 1::2, 0] = 1.0, 1.0
    shares[0, 4, 1:3] = 0.51, 0.49
    own = read_text(_HEAD, {"said": shares})
    assert own == (1,) * 6
    assert expected_cost(_HEAD, {"said": shares}, own, (1, 1, 2, 1, 1, 1)).edits < 0.2
    assert expected_cost(_HEAD, {"said": shares}, own, (1, 1, 1, 2, 1, 1)).edits > 0.9
    both = expected_cost(_HEAD, {"said": shares}, own, (1, 1, 2, 2, 1, 1)).edits
    assert 0.9 < both < 1.2, "what is sure costs its own, not the other's too"


def test_scores_without_a_softmax_tell_the_same() -> None:
    shares = _shares(0, steps=8, classes=5)
    own = read_text(_HEAD, {"said": shares[None]})
    by_shares = expected_cost(_HEAD, {"said": shares[None]}, own, own[1:])
    scores = np.log(shares) + np.arange(8.0)[:, None]
    by_scores = expected_cost(_HEAD, {"said": scores[None]}, own, own[1:])
    assert (by_scores.edits, by_scores.whole) == pytest.approx((by_shares.edits, by_shares.whole))
    padded = np.concatenate([shares, np.full((3, 5), np.nan)])
    assert expected_cost(_HEAD, {"said": padded[None]}, own, own[1:]) == by_shares


def test_what_does_not_say_how_sure_it_is_forgives_nothing() -> None:
    unclear = np.full((1, 8, 5), 0.19)
    unclear[..., ::2, 1] = unclear[..., 1::2, 0] = 0.24
    assert expected_cost(_HEAD, {"said": unclear}, (1, 1, 1, 1), (1, 1, 1)) == Cost(edits=1.0)
    chosen = np.array([[1, 0, 2, 0]])
    assert expected_cost(_HEAD, {"said": chosen}, (1, 2), (1,)) == Cost(edits=1.0)
    characters = TextHead(output="said")
    own: Outputs = {"said": np.array([1, 1, 2])}
    assert read_text(characters, own) == (1, 1, 2)
    assert expected_cost(characters, own, (1, 1, 2), (1, 2)) == Cost(edits=1.0)


def _counted(pairs: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]) -> float:
    return significant_net_edits([want for want, _ in pairs], [have for _, have in pairs])


def test_what_comes_as_often_as_it_goes_is_no_bias_and_what_always_goes_is() -> None:
    gone, come = ((1, 2, 3), (1, 3)), ((1, 3), (1, 2, 3))
    assert _counted([gone, come] * 10) == 0.0
    assert _counted([gone] * 3) == 0.0, "three may be chance"
    assert _counted([gone] * 16) == pytest.approx(16 - 1.96 * 4)
    taken_for = [((1, 2), (1, 4))] * 16
    assert _counted(taken_for) == pytest.approx(16 - 1.96 * 4), "as long as before, and biased"
    assert _counted([((1, 2), (1, 2))] * 9) == 0.0


def test_a_reader_that_drops_what_the_float_model_always_hesitates_at_is_refused() -> None:
    shares = np.full((1, 24, 5), 1e-5)
    shares[0, ::2, 1], shares[0, 1::2, 0] = 1.0, 1.0
    shares[0, 4, :3] = 0.47, 0.0, 0.53
    outputs: Outputs = {"said": shares}
    dropped = {"said": np.delete(shares, 4, axis=1)}
    expected = TASK.open(_HEAD.part, [outputs] * 30)
    one = expected.measure([dropped, *[outputs] * 29])
    assert one.value > 0.999
    assert "0.9972 need no edit" in one.notes[0]
    assert expected.measure([dropped] * 30).value < 0.99

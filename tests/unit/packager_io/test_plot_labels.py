"""Labels of a plot are next to their points, and cover nothing."""

from itertools import combinations

import numpy as np
import pytest

from edgepack.packager.reports.plot import Box, Label, Marker, place_labels

_ROOM = Box(50, 0, 380, 208)


def _marker(words: str, x: float, y: float, *, alone: bool = False) -> Marker:
    return Marker(words=words, box=Box(x - 6, y - 6, x + 6, y + 6), is_alone=alone)


def _placed(*markers: Marker, taken: tuple[Box, ...] = ()) -> list[Label]:
    return list(place_labels(markers, taken, _ROOM))


def test_a_marker_by_itself_has_its_label_at_its_side() -> None:
    (label,) = _placed(_marker("7", 200, 100))
    assert label.words == "7"
    assert label.line is None
    assert label.box.left >= 206
    assert label.box.top < 100 < label.box.bottom


def test_markers_that_cover_each_other_share_a_label() -> None:
    near = [_marker(str(number), 200 + number, 100) for number in (4, 5, 6, 9)]
    (label,) = _placed(*near)
    assert label.words == "4–6, 9"


def test_who_won_keeps_a_label_of_its_own_among_others() -> None:
    labels = _placed(
        _marker("3", 200, 100, alone=True), _marker("1", 202, 101), _marker("2", 203, 99)
    )
    assert [label.words for label in labels] == ["3", "1, 2"]


def test_a_label_gives_way_to_what_stands_there_and_a_line_leads_back() -> None:
    there = Box(206, 0, 380, 208)
    left = Box(50, 0, 194, 208)
    (label,) = _placed(
        _marker("1", 200, 100), taken=(there, left, Box(0, 80, 400, 94), Box(0, 106, 400, 120))
    )
    assert label.line is not None
    assert not any(label.box.overlaps(box) for box in (there, left))


@pytest.mark.parametrize("seed", range(20))
def test_labels_cover_neither_each_other_nor_any_marker(seed: int) -> None:
    rng = np.random.default_rng(seed)
    places = rng.normal((230, 90), (40, 25), (25, 2))
    markers = [
        _marker(str(n), x, y, alone=n == 3) for n, (x, y) in enumerate(places.tolist(), start=1)
    ]
    labels = _placed(*markers)
    assert any(label.words == "3" for label in labels)
    boxes = [label.box for label in labels]
    assert all(map(_ROOM.holds, boxes))
    assert not any(a.overlaps(b) for a, b in combinations(boxes, 2))
    assert not any(box.overlaps(marker.box) for box in boxes for marker in markers)

"""Placement of a plot's labels: next to their markers, without overlaps."""

from collections.abc import Iterator, Sequence

import msgspec

NEAR = 9.0
"""Markers that are nearer than this share a label: they cover each other."""

HEIGHT = 12.0
_LETTER_WIDTH = 7.5
_GAP, _BETWEEN = 3.0, 4.0
_FURTHER = (0.0, 12.0, 26.0, 40.0)
"""How far from its marker a label may move."""

_STEPS = 12
_DIRECTIONS = ((1, 0), (-1, 0), (0, -1), (0, 1), (1, -1), (-1, -1), (1, 1), (-1, 1))


Line = tuple[float, float, float, float]
"""From x and y to x and y."""


class Box(msgspec.Struct, frozen=True):
    """A rectangle; y grows downwards."""

    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other: "Box") -> bool:
        """Return True if both share more than an edge."""
        is_beside = self.right <= other.left or other.right <= self.left
        return not (is_beside or self.bottom <= other.top or other.bottom <= self.top)

    def holds(self, other: "Box") -> bool:
        """Return True if the other box lies inside."""
        return (
            self.left <= other.left
            and self.top <= other.top
            and other.right <= self.right
            and other.bottom <= self.bottom
        )

    @property
    def middle(self) -> tuple[float, float]:
        """Centre of the box."""
        return (self.left + self.right) / 2, (self.top + self.bottom) / 2


class Marker(msgspec.Struct, frozen=True, kw_only=True):
    """Marker with a label.

    Attributes:
        words: Its label: a number, or a word.
        box: Area of the marker.
        is_alone: Whether the marker keeps a separate label next to others.
    """

    words: str
    box: Box
    is_alone: bool = False


class Label(msgspec.Struct, frozen=True, kw_only=True):
    """A label, in its place.

    Attributes:
        words: Text of the label.
        box: Area of the label.
        line: From the label's edge to the middle of its marker; None if adjacent.
    """

    words: str
    box: Box
    line: Line | None


def text_box(words: str, left: float, top: float) -> Box:
    """Return the largest box of a text."""
    return Box(left, top, left + _LETTER_WIDTH * len(words) + _BETWEEN, top + HEIGHT)


def place_labels(markers: Sequence[Marker], taken: Sequence[Box], room: Box) -> Iterator[Label]:
    """Return the labels that fit; adjacent markers share a label.

    Args:
        markers: Markers to label; the first markers choose first.
        taken: Areas without labels, in addition to the markers.
        room: Area of all labels.
    """
    covered = [*taken, *(marker.box for marker in markers)]
    labels: list[Box] = []
    for group in _groups(markers):
        words = _joined([marker.words for marker in group])
        target = _around([marker.box for marker in group])
        others = [marker.box for marker in markers if marker not in group]
        clear = (*covered, *map(_wider, others))
        inside = [it for it in _places(words, target) if room.holds(it.box)]
        free = [it for it in inside if not any(map(it.box.overlaps, clear))]
        label = next((it for it in free if _is_clear(it.line, (*labels, *others))), None)
        if label is None and group[0].is_alone:  # it is told whatever its line crosses
            label = next((it for it in free if _is_clear(it.line, labels)), None)
        if label is not None:
            labels.append(label.box)
            covered += (label.box, *_steps(label.line))
            yield label


def _is_clear(line: Line | None, boxes: Sequence[Box]) -> bool:
    return not any(step.overlaps(box) for step in _steps(line) for box in boxes)


def _steps(line: Line | None) -> Iterator[Box]:
    """Yield small boxes along a line."""
    if line is not None:
        x1, y1, x2, y2 = line
        for number in range(1, _STEPS):
            x, y = x1 + (x2 - x1) * number / _STEPS, y1 + (y2 - y1) * number / _STEPS
            yield Box(x - 1, y - 1, x + 1, y + 1)


def _wider(box: Box) -> Box:
    """Widen a marker's box by the margin in which a label would seem to belong to the marker."""
    return Box(box.left - 2 * _GAP, box.top, box.right + 2 * _GAP, box.bottom)


def _groups(markers: Sequence[Marker]) -> list[list[Marker]]:
    groups: list[list[Marker]] = []
    for marker in markers:
        x, y = marker.box.middle
        for group in groups:
            near_x, near_y = group[-1].box.middle
            is_open = not (marker.is_alone or group[0].is_alone)
            if is_open and abs(x - near_x) < NEAR and abs(y - near_y) < NEAR:
                group.append(marker)
                break
        else:
            groups.append([marker])
    return groups


def _around(boxes: Sequence[Box]) -> Box:
    return Box(
        min(box.left for box in boxes),
        min(box.top for box in boxes),
        max(box.right for box in boxes),
        max(box.bottom for box in boxes),
    )


def _places(words: str, target: Box) -> Iterator[Label]:
    """Return the places for a label, the best first."""
    size = text_box(words, 0.0, 0.0)
    x, y = target.middle
    for further in _FURTHER:
        for across, down in _DIRECTIONS:
            left = {
                1: target.right + _GAP + further,
                0: x - size.right / 2,
                -1: target.left - _GAP - further - size.right,
            }[across]
            top = {
                1: target.bottom + _GAP / 2 + further,
                0: y - HEIGHT / 2,
                -1: target.top - _GAP / 2 - further - HEIGHT,
            }[down]
            box = text_box(words, left, top)
            edge_x, edge_y = min(max(x, box.left), box.right), min(max(y, box.top), box.bottom)
            line = (edge_x, edge_y, x, y) if further or (across and down) else None
            yield Label(words=words, box=box, line=line)


def _joined(words: Sequence[str]) -> str:
    """Return the numbers that follow each other as a range: `4–7, 12`."""
    numbers = sorted(int(word) for word in words if word.isdigit())
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    ranges = [
        f"{part[0]}–{part[-1]}" if len(part) > 2 else ", ".join(map(str, part)) for part in parts
    ]
    return ", ".join([*(word for word in words if not word.isdigit()), *ranges])

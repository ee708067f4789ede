"""The plot of accuracy against a cost, as SVG inside the page.

The plot has about the width of a phone, so that its text stays readable on a narrow page. Colours
come from the page's style, by class.

Placement of a plot's labels: next to their markers, without overlaps.
"""

import math
from collections.abc import Callable, Iterator, Sequence

import msgspec
from markupsafe import Markup, escape

from edgepack.bundle.manifest import Accuracy
from edgepack.number_format import format_metric

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


_WIDTH, _HEIGHT = 380, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 50, 366, 14, 208
_FOCUS = 3.0
"""Of what lies below the budget, a plot shows this many times what lies above it."""

_TICK_ROOM = 12
_RADIUS, _RING_RADIUS = 6.0, 11.0
_BASELINE = 10.0
"""From the top of a text's box to its baseline."""


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """Point of a model in a plot.

    Attributes:
        label: Its number in the table; "" for the float model.
        words: Description of the model.
        x: Bytes or milliseconds.
        accuracy: The metric's value.
        kind: `float`, `kept` (within the budget) or `missed`.
        is_winner: Whether the model was published; a published model gets a ring.
    """

    label: str
    words: str
    x: float
    accuracy: float
    kind: str
    is_winner: bool


def plot(
    points: Sequence[Point],
    values: Sequence[float],
    accuracy: Accuracy,
    x_words: str,
    x_text: Callable[[float], str],
) -> Markup:
    """Return accuracy against a cost, with the budget as a line.

    Points far below the budget are drawn at the bottom edge, as an arrow.

    Args:
        points: At least 1.
        values: Accuracies that the vertical axis is made for, so that two plots have the same.
        accuracy: The float model's value and the budget.
        x_words: Meaning of the horizontal axis.
        x_text: Formats a cost for people.
    """
    budget = accuracy.budget
    low, high = _focus([*values, accuracy.float_value], budget)
    right = 1.12 * max(point.x for point in points) or 1.0

    def place(point: Point) -> tuple[float, float]:
        share = (min(max(point.accuracy, low), high) - low) / (high - low)
        return _LEFT + point.x / right * (_RIGHT - _LEFT), _BOTTOM - share * (_BOTTOM - _TOP)

    parts = [
        Markup('<svg class="plot" viewBox="0 0 {} {}" role="img" aria-label="{}">').format(
            _WIDTH, _HEIGHT, f"Accuracy against {x_words}"
        )
    ]
    for value in _ticks(low, high, 4):
        y = _BOTTOM - (value - low) / (high - low) * (_BOTTOM - _TOP)
        parts.append(_line(_LEFT, y, _RIGHT, y, "grid"))
        parts.append(_text(_LEFT - 6, y + 4, _short(value, high - low), "end"))
    for value in _ticks(0.0, right, 4):
        x = _LEFT + value / right * (_RIGHT - _LEFT)
        label_x, anchor = (_WIDTH, "end") if x > _RIGHT - _TICK_ROOM else (x, "middle")
        parts.append(_text(label_x, _BOTTOM + 17, x_text(value), anchor))
    parts.append(_line(_LEFT, _BOTTOM, _RIGHT, _BOTTOM, "axis"))
    parts.append(_text((_LEFT + _RIGHT) / 2, _HEIGHT - 8, x_words, "middle"))
    y = _BOTTOM - (budget - low) / (high - low) * (_BOTTOM - _TOP)
    parts.append(_line(_LEFT, y, _RIGHT, y, "budget"))
    markers = [
        Marker(words=point.label or "float", box=_marker_box(point, *place(point)), is_alone=alone)
        for alone, point in sorted(
            ((point.is_winner or not point.label, point) for point in points),
            key=lambda entry: not entry[0],
        )
    ]
    named = f"budget {format_metric(budget)}"
    box = _budget_box(named, y, markers)
    parts.append(_text(box.left, box.top + _BASELINE, named, "start", "budget"))
    taken = (box, Box(_LEFT, y - 1, _RIGHT, y + 1))
    labels = list(place_labels(markers, taken, Box(_LEFT, 0, _WIDTH, _BOTTOM)))
    parts += [_line(*label.line, "leader") for label in labels if label.line]
    parts += [_marker(point, *place(point), is_below=point.accuracy < low) for point in points]
    parts += [
        _text(label.box.middle[0], label.box.top + _BASELINE, label.words, "middle", "label")
        for label in labels
    ]
    parts.append(Markup("</svg>"))
    return Markup("").join(parts)


def is_off_scale(points: Sequence[Point], values: Sequence[float], accuracy: Accuracy) -> bool:
    """Return True if the plot draws any point at its edge; see `plot`."""
    low, _ = _focus([*values, accuracy.float_value], accuracy.budget)
    return any(point.accuracy < low for point in points)


def _focus(values: Sequence[float], budget: float) -> tuple[float, float]:
    high = max(*values, budget)
    above = max(high - budget, 0.005 * max(abs(budget), 1e-6))
    low = max(min(*values, budget), budget - _FOCUS * above)
    room = 0.12 * max(high - low, above)
    return low - room, high + room


def _ticks(low: float, high: float, most: int) -> list[float]:
    """Round numbers from `low` to `high`, about `most`."""
    raw = (high - low) / most
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * size for factor in (1, 2, 5, 10) if factor * size >= raw)
    first = math.ceil(low / step - 1e-9)
    return [round(number * step, 12) for number in range(first, math.floor(high / step + 1e-9) + 1)]


def _short(value: float, span: float) -> str:
    digits = max(0, 1 - math.floor(math.log10(span)))
    return f"{value:.{min(digits, 6)}f}"


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Markup:
    return Markup('<line class="{}" x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}"/>').format(
        kind, x1, y1, x2, y2
    )


def _text(x: float, y: float, words: str, anchor: str, kind: str = "") -> Markup:
    return Markup('<text class="{}" x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>').format(
        kind, x, y, anchor, words
    )


def _marker(point: Point, x: float, y: float, *, is_below: bool) -> Markup:
    title = Markup("<title>{}: {}</title>").format(point.words, f"{point.accuracy:.4f}")
    if is_below:
        shape = Markup('<path class="{}" d="M{:.1f} {:.1f}l-5 -8h10z">').format(
            point.kind, x, y + 4
        )
        return shape + title + Markup("</path>")
    ring = ""
    if point.is_winner:
        ring = Markup('<circle class="ring" cx="{:.1f}" cy="{:.1f}" r="10"/>').format(x, y)
    if point.kind == "float":
        shape = Markup('<path class="float" d="M{:.1f} {:.1f}l6 6l-6 6l-6 -6z">').format(x, y - 6)
        return escape(ring) + shape + title + Markup("</path>")
    shape = Markup('<circle class="{}" cx="{:.1f}" cy="{:.1f}" r="5">').format(point.kind, x, y)
    return escape(ring) + shape + title + Markup("</circle>")


def _marker_box(point: Point, x: float, y: float) -> Box:
    radius = _RING_RADIUS if point.is_winner else _RADIUS
    return Box(x - radius, y - radius, x + radius, y + radius)


def _budget_box(words: str, y: float, markers: Sequence[Marker]) -> Box:
    """Return the box of the budget's label: at either end of the line, clear of the markers."""
    boxes = [
        text_box(words, left, top)
        for top in (y - HEIGHT - 2, y + 2)
        for left in (_LEFT + 4, _RIGHT - text_box(words, 0, 0).right)
        if top + HEIGHT < _BOTTOM
    ]
    free = (box for box in boxes if not any(box.overlaps(marker.box) for marker in markers))
    return next(free, boxes[0])

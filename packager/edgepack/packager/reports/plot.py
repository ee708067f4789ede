"""The plot of accuracy against a cost, as SVG inside the page.

It has about the width of a phone, so that its text stays readable when the page is narrow. Colours
come from the page's style, by class.
"""

import math
from collections.abc import Callable, Sequence

import msgspec
from markupsafe import Markup, escape

from edgepack.bundle.manifest import Accuracy
from edgepack.packager.number_format import format_metric

_WIDTH, _HEIGHT = 380, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 50, 366, 14, 208
_FOCUS = 3.0
"""Of what lies below the budget, a plot shows this many times what lies above it."""

_LABEL_PLACES: tuple[tuple[float, float, str], ...] = (
    (9, 4, "start"),
    (-9, 4, "end"),
    (0, -10, "middle"),
    (0, 18, "middle"),
)
_TICK_ROOM = 12
_LABEL_HEIGHT, _LABEL_WIDTH = 11, 8


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One model in a plot.

    Attributes:
        label: Its number in the table; "" for the float model.
        words: What it is.
        x: Bytes or milliseconds.
        accuracy: The metric's value.
        kind: `float`, `kept` (within the budget) or `missed`.
        is_winner: Whether it is what was published; it gets a ring.
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
    """Accuracy against a cost, with the budget as a line.

    What lies far below the budget is drawn at the bottom edge, with an arrow.

    Args:
        points: At least one.
        values: Accuracies that the vertical axis is made for, so that two plots have the same.
        accuracy: The float model's value and the budget.
        x_words: What the horizontal axis is.
        x_text: A cost as people read it.
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
        is_last = x > _RIGHT - _TICK_ROOM
        parts.append(
            _text(
                _WIDTH if is_last else x,
                _BOTTOM + 17,
                x_text(value),
                "end" if is_last else "middle",
            )
        )
    parts.append(_line(_LEFT, _BOTTOM, _RIGHT, _BOTTOM, "axis"))
    parts.append(_text((_LEFT + _RIGHT) / 2, _HEIGHT - 8, x_words, "middle"))
    y = _BOTTOM - (budget - low) / (high - low) * (_BOTTOM - _TOP)
    parts.append(_line(_LEFT, y, _RIGHT, y, "budget"))
    parts.append(_text(_LEFT + 4, y - 5, f"budget {format_metric(budget)}", "start", "budget"))
    taken = [(_LEFT + 4.0, y - 14, _LEFT + 84.0, y)]
    taken += [(x - 5, y - 5, x + 5, y + 5) for x, y in map(place, points)]
    for point in sorted(points, key=lambda point: not point.is_winner):
        x, y = place(point)
        parts.append(_marker(point, x, y, is_below=point.accuracy < low))
        parts.append(_label(point, x, y, taken))
    parts.append(Markup("</svg>"))
    return Markup("").join(parts)


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


def _label(
    point: Point, x: float, y: float, taken: list[tuple[float, float, float, float]]
) -> Markup:
    """The point's label where it covers nothing; none where there is no such place."""
    words = point.label or "float"
    width = _LABEL_WIDTH * len(words)
    for dx, dy, anchor in _LABEL_PLACES:
        if point.is_winner:
            dx, dy = dx * 1.5, dy if anchor in ("start", "end") else dy * 1.4
        left = x + dx - {"start": 0.0, "middle": width / 2, "end": float(width)}[anchor]
        box = (left, y + dy - _LABEL_HEIGHT, left + width, y + dy)
        is_inside = box[0] > _LEFT and box[2] < _RIGHT + 10 and box[3] < _BOTTOM
        if is_inside and not any(_overlap(box, other) for other in taken):
            taken.append(box)
            return _text(x + dx, y + dy, words, anchor, "label")
    return Markup("")


def _overlap(a: tuple[float, float, float, float], b: tuple[float, float, float, float]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]

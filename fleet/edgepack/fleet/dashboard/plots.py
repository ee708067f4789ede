"""Plots as SVG inside a page; colours come from the page's style, by class."""

import math
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence

from markupsafe import Markup

from edgepack.fleet.documents.rollouts import LatencySpan
from edgepack.fleet.documents.wording import STATES
from edgepack.text import printable

MAX_LINES = 6
_WIDTH, _HEIGHT = 360, 200
_LEFT, _RIGHT, _TOP, _BOTTOM = 38, 350, 10, 162
"""About as wide as a phone, so that the text stays readable there."""
_DAY_S = 24 * 3600


def states_bar(counts: Mapping[str, int]) -> Markup:
    """Return the devices by state as a bar of 100 %."""
    total = sum(counts.values())
    known = [(state, counts[state]) for state in STATES if counts.get(state)]
    words = ", ".join(f"{count} {state.lower()}" for state, count in known) or "no devices"
    parts = [
        Markup(
            '<svg class="states" viewBox="0 0 100 10" preserveAspectRatio="none" role="img" '
            'aria-label="{}"><rect class="track" width="100" height="10"/>'
        ).format(words)
    ]
    at = 0.0
    for state, count in known:
        width = 100 * count / total
        parts.append(
            Markup('<rect class="s-{}" x="{:.3f}" width="{:.3f}" height="10"/>').format(
                state.lower(), at, width
            )
        )
        at += width
    return Markup("").join([*parts, Markup("</svg>")])


def share_bar(share: float, words: str) -> Markup:
    """Return a share of 1 as a bar."""
    return Markup(
        '<svg class="share" viewBox="0 0 100 8" preserveAspectRatio="none" role="img" '
        'aria-label="{}"><rect class="track" width="100" height="8"/>'
        '<rect class="fill" width="{:.2f}" height="8"/></svg>'
    ).format(printable(words), 100 * min(max(share, 0.0), 1.0))


def key(css_class: str) -> Markup:
    """Return a patch of a colour, for a legend."""
    return Markup(
        '<svg viewBox="0 0 10 10" aria-hidden="true">'
        '<rect class="{}" width="10" height="10"/></svg>'
    ).format(css_class)


def line_key(index: int) -> Markup:
    """Return a patch of the colour of a line."""
    return Markup(
        '<svg viewBox="0 0 10 10" aria-hidden="true">'
        '<circle class="l l{}" cx="5" cy="5" r="5"/></svg>'
    ).format(index)


def classes_of(spans: Sequence[LatencySpan]) -> tuple[str, ...]:
    """Return the hardware classes that a plot shows, in the order of their colours."""
    seen: dict[str, int] = defaultdict(int)
    for span in spans:
        seen[span.hardware_class] += span.inferences
    most = sorted(seen, key=lambda name: -seen[name])[:MAX_LINES]
    return tuple(sorted(most))


def latency_plot(spans: Sequence[LatencySpan], length_s: int) -> Markup:
    """Return p95 latency over time, a line for each hardware class.

    Args:
        spans: At least a single span.
        length_s: Of each span, seconds.
    """
    names = classes_of(spans)
    shown = [span for span in spans if span.hardware_class in names]
    begin = min(span.start for span in shown)
    end = max(span.start for span in shown) + length_s
    high = 1.15 * max(span.p95_ms for span in shown) or 1.0

    def place(span: LatencySpan) -> tuple[float, float]:
        middle = span.start + length_s / 2
        x = _LEFT + (middle - begin) / (end - begin) * (_RIGHT - _LEFT)
        return x, _BOTTOM - span.p95_ms / high * (_BOTTOM - _TOP)

    last = {span.hardware_class: span for span in shown}
    words = "; ".join(f"{name} {last[name].p95_ms:.3g} ms" for name in names)
    parts = [
        Markup('<svg class="plot" viewBox="0 0 {} {}" role="img" aria-label="{}">').format(
            _WIDTH, _HEIGHT, printable(f"p95 latency over time by hardware, last: {words}")
        )
    ]
    for value in _ticks(high):
        y = _BOTTOM - value / high * (_BOTTOM - _TOP)
        parts.append(
            Markup('<line class="grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>').format(
                _LEFT, _RIGHT, y, y
            )
        )
        parts.append(_text(_LEFT - 6, y + 4, f"{value:g}", "end"))
    for share, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end")):
        moment = begin + share * (end - begin)
        x = _LEFT + share * (_RIGHT - _LEFT)
        parts.append(_text(x, _BOTTOM + 18, _moment(moment, end - begin), anchor))
    parts.append(_text(_LEFT, _HEIGHT - 2, "p95, milliseconds", "start"))
    for index, name in enumerate(names):
        points = [place(span) for span in shown if span.hardware_class == name]
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        parts.append(Markup('<path class="l l{}" d="{}"/>').format(index, path))
        if len(points) <= 40:
            parts += [
                Markup('<circle class="l l{}" cx="{:.1f}" cy="{:.1f}" r="2.6"/>').format(
                    index, x, y
                )
                for x, y in points
            ]
    return Markup("").join([*parts, Markup("</svg>")])


def _ticks(high: float) -> list[float]:
    """Return three to five round numbers from 0."""
    rough = high / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough)
    return [step * number for number in range(int(high / step) + 1)]


def _moment(moment: float, reach_s: float) -> str:
    pattern = "%H:%M" if reach_s <= 2 * _DAY_S else "%Y-%m-%d"
    return time.strftime(pattern, time.localtime(moment))


def _text(x: float, y: float, words: str, anchor: str) -> Markup:
    return Markup('<text x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>').format(
        x, y, anchor, words
    )

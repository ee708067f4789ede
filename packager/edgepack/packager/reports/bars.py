"""The report's drawings without text, as SVG that is stretched to whatever room there is.

Colours come from the page's style, by class.
"""

import math
from collections.abc import Sequence

from markupsafe import Markup

from edgepack.packager.metrics.layer_errors import LayerError
from edgepack.packager.metrics.tensor_ranges import TensorRange


def depth(layers: Sequence[LayerError]) -> Markup:
    """The error of each tensor from the first to the last, on a logarithmic scale.

    The grid's labels are text of the page, since the drawing is stretched.
    """
    floor = depth_floor(layers)
    width = 10.0 * len(layers)
    parts = [
        Markup(
            '<svg class="depth" viewBox="0 0 {:.0f} 100" preserveAspectRatio="none" role="img" '
            'aria-label="Error of each tensor, from input to output">'
        ).format(width)
    ]
    parts += [
        Markup('<line class="grid" x1="0" y1="{:.1f}" x2="{:.0f}" y2="{:.1f}"/>').format(
            100 * share, width, 100 * share
        )
        for share, _ in depth_grid(floor)
    ]
    for number, layer in enumerate(layers):
        height = max(100 * _log_share(layer.nrmse, floor), 1.0)
        parts.append(
            Markup(
                '<rect class="{}" x="{}" y="{:.1f}" width="{}" height="{:.1f}"><title>{}</title>'
                "</rect>"
            ).format(
                "fill" if layer.is_lowered else "other",
                10 * number + 1,
                100 - height,
                8,
                height,
                f"{layer.node} ({layer.op}): {layer.nrmse:.2%} of its size, {layer.sqnr_db} dB",
            )
        )
    parts.append(Markup("</svg>"))
    return Markup("").join(parts)


def depth_floor(layers: Sequence[LayerError]) -> float:
    """The power of ten at or below the least error, between 1e-5 and 1e-2."""
    least = min((layer.nrmse for layer in layers), default=1e-2)
    return float(min(max(10.0 ** math.floor(math.log10(max(least, 1e-5))), 1e-5), 1e-2))


def depth_grid(floor: float) -> tuple[tuple[float, str], ...]:
    """Where the grid of `depth` is: share of the height from the top, and its label."""
    steps = round(-math.log10(floor))
    return tuple(
        (step / steps, f"{100 * 10.0**-step:.10f}".rstrip("0").rstrip(".") + " %")
        for step in range(steps + 1)
    )


def range_bar(entry: TensorRange) -> Markup:
    """What a tensor takes (line), 99.9 % of it (bar), and what its scale covers (frame)."""
    low = min(entry.covered_low, entry.seen_low, entry.central_low)
    high = max(entry.covered_high, entry.seen_high, entry.central_high)
    width = (high - low) or 1.0

    def rect(kind: str, start: float, end: float, top: int, height: int) -> Markup:
        return Markup('<rect class="{}" x="{:.1f}" y="{}" width="{:.1f}" height="{}"/>').format(
            kind, 200 * (start - low) / width, top, 200 * max(end - start, 0) / width, height
        )

    return Markup("").join(
        (
            Markup(
                '<svg class="range" viewBox="0 0 200 16" preserveAspectRatio="none" role="img" '
            ),
            Markup('aria-label="Range">'),
            rect("track", entry.covered_low, entry.covered_high, 0, 16),
            rect("seen", entry.seen_low, entry.seen_high, 7, 2),
            rect("fill", entry.central_low, entry.central_high, 4, 8),
            Markup("</svg>"),
        )
    )


def gauge(value: float, budget: float, top: float) -> Markup:
    """A value against its budget: the bar turns amber below the mark."""
    room = max(top - budget, 0.01 * max(abs(budget), 1e-6))
    low = budget - 2 * room
    high = max(top, value)

    def at(number: float) -> float:
        return 200 * min(max((number - low) / (high - low), 0.0), 1.0)

    return Markup(
        '<svg class="gauge" viewBox="0 0 200 10" preserveAspectRatio="none" role="img" '
        'aria-label="{}"><rect class="track" width="200" height="10" rx="2"/>'
        '<rect class="{}" width="{:.1f}" height="10" rx="2"/>'
        '<line class="mark" x1="{:.1f}" x2="{:.1f}" y1="0" y2="10"/></svg>'
    ).format(
        f"{value:.4f} of a budget of {budget:.4f}",
        "fill" if value >= budget else "miss",
        max(at(value), 2.0),
        at(budget),
        at(budget),
    )


def bar(share: float, kind: str = "fill") -> Markup:
    """A bar of a share of its track, 0…1."""
    return Markup(
        '<svg class="bar" viewBox="0 0 200 10" preserveAspectRatio="none" aria-hidden="true">'
        '<rect class="track" width="200" height="10" rx="2"/>'
        '<rect class="{}" width="{:.1f}" height="10" rx="2"/></svg>'
    ).format(kind, 200 * min(max(share, 0.0), 1.0))


def _log_share(value: float, floor: float) -> float:
    return min(max(1 - math.log10(max(value, floor)) / math.log10(floor), 0.0), 1.0)

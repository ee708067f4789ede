"""Differences inside two variants: errors of layers, ranges of scales."""

from collections.abc import Mapping
from statistics import median

import msgspec

from edgepack.packager.runtime.inspection import Inspection, LayerError, TensorRange

CLEARLY_DB = 3.0
"""Half or twice the noise power: less is no news."""

CLEARLY_WIDER = 1.25
_MOST_LISTED = 20


class LayerChange(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor with a clearly different error; signal to noise in decibels, more is better."""

    node: str
    op: str
    a_sqnr_db: float
    b_sqnr_db: float


class RangeChange(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor with a scale that covers clearly more or less.

    Attributes:
        tensor: Its name.
        a_low, a_high, b_low, b_high: Covered ranges.
        a_clipped_share, b_clipped_share: Share of values that saturate, 0…1.
    """

    tensor: str
    a_low: float
    a_high: float
    b_low: float
    b_high: float
    a_clipped_share: float
    b_clipped_share: float


class InsideComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Two looks inside, of the tensors that both know.

    Attributes:
        shared_layers: How many layers both have.
        a_median_db, b_median_db: Median signal to noise over the shared layers, decibels.
        worse, better: Layers with a clearly larger, or smaller, error in B; the greatest
            differences first, at most 20.
        shared_ranges: How many scales both have.
        ranges: Scales that cover clearly more or less in B; likewise.
    """

    shared_layers: int
    a_median_db: float
    b_median_db: float
    worse: tuple[LayerChange, ...]
    better: tuple[LayerChange, ...]
    shared_ranges: int
    ranges: tuple[RangeChange, ...]


def compare_inside(a: Inspection | None, b: Inspection | None) -> InsideComparison | None:
    """Set two looks inside against each other; None where a side has none, or nothing in common.

    Args:
        a, b: The build's inspections.
    """
    if a is None or b is None:
        return None
    first, second = ({layer.tensor: layer for layer in side.layers} for side in (a, b))
    shared = [name for name in first if name in second]
    if not shared:
        return None
    changes = sorted(
        (_layer(first[name], second[name]) for name in shared),
        key=lambda change: (-abs(change.b_sqnr_db - change.a_sqnr_db), change.node),
    )
    clear = [one for one in changes if abs(one.b_sqnr_db - one.a_sqnr_db) >= CLEARLY_DB]
    ranges, others = ({entry.tensor: entry for entry in side.ranges} for side in (a, b))
    return InsideComparison(
        shared_layers=len(shared),
        a_median_db=round(median(first[name].sqnr_db for name in shared), 1),
        b_median_db=round(median(second[name].sqnr_db for name in shared), 1),
        worse=tuple(one for one in clear if one.b_sqnr_db < one.a_sqnr_db)[:_MOST_LISTED],
        better=tuple(one for one in clear if one.b_sqnr_db > one.a_sqnr_db)[:_MOST_LISTED],
        shared_ranges=len(ranges.keys() & others.keys()),
        ranges=_ranges(ranges, others),
    )


def _layer(a: LayerError, b: LayerError) -> LayerChange:
    return LayerChange(node=b.node, op=b.op, a_sqnr_db=a.sqnr_db, b_sqnr_db=b.sqnr_db)


def _ranges(a: Mapping[str, TensorRange], b: Mapping[str, TensorRange]) -> tuple[RangeChange, ...]:
    factors = {
        name: _factor(a[name], b[name])
        for name in a
        if name in b and _factor(a[name], b[name]) >= CLEARLY_WIDER
    }
    ranked = sorted(factors, key=lambda name: (-factors[name], name))
    return tuple(
        RangeChange(
            tensor=name,
            a_low=a[name].covered_low,
            a_high=a[name].covered_high,
            b_low=b[name].covered_low,
            b_high=b[name].covered_high,
            a_clipped_share=a[name].clipped_share,
            b_clipped_share=b[name].clipped_share,
        )
        for name in ranked[:_MOST_LISTED]
    )


def _factor(a: TensorRange, b: TensorRange) -> float:
    """Return the ratio of two ranges, the wider by the narrower."""
    widths = [entry.covered_high - entry.covered_low for entry in (a, b)]
    return max(widths) / max(min(widths), 1e-30)

"""Agreement of a detector with the float model: F1 of boxes, and change of the number of boxes.

The application's score threshold is unknown, so both models' boxes are compared at each threshold
of a range. The lower F1 of the range's two halves counts: an average over the whole range hides a
model that loses only its faint objects, and a single threshold jumps with each box just above the
threshold. The upper half does not count if the float model finds less than half of its boxes of the
lowest threshold there.

Noise lifts as many faint boxes over a threshold as noise drops below the threshold, and
applications fare equally well with either set: for a detector with 1 % of noise on its weights,
98.7 % of the boxes above a threshold were the same, and the detector was right as often as before.
So a box that comes is set off against a box that goes, if both models have both boxes at nearly the
same score. The remaining differences count: missing, new or moved boxes, and the net change: bias
moves all scores in the same direction. The relative change of the number of boxes is reported
together with F1. If this change is significant at any threshold, F1 is capped at the F1 of such a
bias.
"""

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from edgepack.tasks.arrays import Floats
from edgepack.tasks.detections.boxes import Boxes, overlaps, pair
from edgepack.tasks.detections.layouts import MARGIN, Layout
from edgepack.tasks.intervals import independent, kept_low, share_low

_FEWEST = 0.5
"""Of the float model's boxes at the lowest threshold; see above."""

_COCO = np.arange(50, 100, 5) / 100.0
"""Overlaps of COCO's mean average precision."""

_Z = 1.96
"""Standard normal quantile of 97.5 %."""


class DetectionAgreement(msgspec.Struct, frozen=True, kw_only=True, tag="detections"):
    """A variant's boxes against the float model's, over all samples.

    Attributes:
        value: F1: twice the pairs over all boxes of both, see above.
        low: Its lower bound for samples like these, one-sided, 95 %.
        boxes: Number of the float model's boxes at `named`.
        bias: How many more or fewer (negative) the variant finds there, as a share.
        bias_low, bias_high: Its bounds for samples like these, 95 %.
        named: The threshold at which boxes are counted.
    """

    value: float
    low: float
    boxes: int
    bias: float
    bias_low: float
    bias_high: float
    named: float


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """Boxes of a sample at each threshold: (thresholds,) each.

    Attributes:
        expected, got: The float model's and the variant's.
        paired: Boxes found by both.
        come, gone: Pairs at nearly the same score of which only the variant's, or only the float
            model's reaches the threshold.
        shifts: Differences of the scores of pairs, any number.
        overlaps: Intersection over union of the pairs that both find at `named`, any number.
    """

    expected: Floats
    got: Floats
    paired: Floats
    come: Floats
    gone: Floats
    shifts: Floats
    overlaps: Floats


def count_boxes(expected: Boxes, got: Boxes, layout: Layout) -> Counts:
    """Compare the boxes of a sample."""
    steps = np.array(layout.thresholds)[:, None]
    first, second = pair(expected, got)
    was, now = expected.scores[first], got.scores[second]
    common = np.minimum(was, now) >= layout.named
    pairs = expected.pick(first[common]), got.pick(second[common])
    is_near = np.abs(was - now) <= MARGIN
    return Counts(
        expected=(expected.scores >= steps).sum(axis=1).astype(np.float64),
        got=(got.scores >= steps).sum(axis=1).astype(np.float64),
        paired=(np.minimum(was, now) >= steps).sum(axis=1).astype(np.float64),
        come=(is_near & (was < steps) & (now >= steps)).sum(axis=1).astype(np.float64),
        gone=(is_near & (was >= steps) & (now < steps)).sum(axis=1).astype(np.float64),
        shifts=now - was,
        overlaps=overlaps(*pairs).diagonal(),
    )


def measure_places(counts: Sequence[Counts]) -> float:
    """Return the share of pairs that overlap enough, as a mean over COCO's overlaps; 1 without
    pairs.
    """
    overlaps = np.concatenate([entry.overlaps for entry in counts])
    return float((overlaps >= _COCO[:, None]).mean()) if len(overlaps) else 1.0


def measure_agreement(counts: Sequence[Counts], layout: Layout) -> DetectionAgreement | None:
    """Return the agreement over all samples; None if the float model finds nothing in any sample.

    Samples in which neither finds anything say nothing.
    """
    counts = [entry for entry in counts if entry.expected.any() or entry.got.any()]
    if not counts:
        return None
    expected = np.stack([entry.expected for entry in counts])
    got = np.stack([entry.got for entry in counts])
    paired = np.stack([entry.paired for entry in counts])
    place = layout.thresholds.index(layout.named)
    if not expected[:, place].any():
        return None
    whole = expected + got
    lost = whole - 2.0 * paired - 2.0 * _set_off(counts)
    halves = _halves(expected)
    shares = [float(lost[:, half].sum() / whole[:, half].sum()) for half in halves]
    worst = halves[int(np.argmax(shares))]
    bias, room = _bias(expected[:, place], got[:, place])
    in_use = range(halves[-1].stop)
    left = min(_f1_left_by(*_bias(expected[:, k], got[:, k])) for k in in_use)
    f1 = 1.0 - max(shares)
    low = kept_low(lost[:, worst].sum(axis=1).tolist(), whole[:, worst].sum(axis=1).tolist())
    if f1 == 1.0 and any(entry.shifts.any() for entry in counts):
        low = share_low(1.0, independent([0.0] * len(counts), expected[:, place].tolist()))
    return DetectionAgreement(
        value=min(f1, left),
        low=min(left, low),
        boxes=int(expected[:, place].sum()),
        bias=bias,
        bias_low=bias - room,
        bias_high=bias + room,
        named=layout.named,
    )


def _f1_left_by(bias: float, room: float) -> float:
    """Return F1 of equal boxes except for a significantly missing share, or a surplus."""
    sure = max(abs(bias) - room, 0.0)
    return 1.0 - sure / (2.0 + math.copysign(sure, bias))


def _halves(expected: Floats) -> list[slice]:
    """Return the halves of a range of thresholds; both contain the middle threshold, which
    applications use.
    """
    count = expected.shape[1]
    upper = slice(count // 2, count)
    is_used = expected[:, upper].sum(axis=0).mean() >= _FEWEST * expected[:, 0].sum()
    return [slice(0, count // 2 + 1), *([upper] if is_used else [])]


def _set_off(counts: Sequence[Counts]) -> Floats:
    """Return pairs that come or go, offset by opposite pairs, spread over their samples.

    (samples, thresholds): half of a pair for a coming and half for a going box.
    """
    come = np.stack([entry.come for entry in counts])
    gone = np.stack([entry.gone for entry in counts])
    least = np.minimum(come.sum(axis=0), gone.sum(axis=0))
    shares = [
        np.divide(least, kind.sum(axis=0), out=np.zeros_like(least), where=least > 0.0) * kind
        for kind in (come, gone)
    ]
    return np.asarray((shares[0] + shares[1]) / 2.0)


def _bias(expected: Floats, got: Floats) -> tuple[float, float]:
    """Return the relative change of the number of boxes, and its uncertainty (Cochran's ratio
    estimator).
    """
    total = max(float(expected.sum()), 1.0)
    bias = float(got.sum() - expected.sum()) / total
    count = len(expected)
    if count < 2:
        return bias, 1.0  # of one sample nothing is known
    spread = float(((got - expected - bias * expected) ** 2).sum()) / (count - 1)
    return bias, _Z * math.sqrt(spread * count) / total

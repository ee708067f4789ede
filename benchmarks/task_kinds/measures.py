"""Measures of tasks against the truth."""

from collections.abc import Hashable, Sequence

import numpy as np

from benchmarks.tasks.task import Array


def r2(truth: Array, got: Array) -> float:
    """Return the mean over columns of the share of variance that is explained."""
    left = ((truth - got) ** 2).mean(0) / truth.var(0)
    return float(1 - left.mean())


def auc(is_positive: Array, scores: Array) -> float:
    """Return the share of pairs of a positive and a negative that are in order; ties count half."""
    positive, negative = scores[is_positive], scores[~is_positive]
    ordered = np.sort(negative)
    below = np.searchsorted(ordered, positive, "left") + np.searchsorted(ordered, positive, "right")
    return float(below.mean() / 2 / len(negative))


def log_loss(labels: Array, shares: Array) -> float:
    """Return the mean negative logarithm of the right class's share, in nats."""
    right = shares[np.arange(len(labels)), labels]
    return float(-np.log(np.clip(right, 1e-6, 1)).mean())


def psnr(truth: Array, got: Array) -> float:
    """Return the mean over pictures of the signal to noise ratio at a peak of 1, decibels."""
    axes = tuple(range(1, truth.ndim))
    return float((-10 * np.log10(((truth - got) ** 2).mean(axes) + 1e-12)).mean())


def mean_iou(truth: Array, got: Array, classes: int) -> float:
    """Return the mean over classes of intersection over union."""
    found = []
    for index in range(classes):
        union = ((truth == index) | (got == index)).sum()
        if union:
            found.append(((truth == index) & (got == index)).sum() / union)
    return float(np.mean(found))


def f1(truth: Array, got: Array) -> float:
    """Return the harmonic mean of precision and recall."""
    both = (truth & got).sum()
    return float(2 * both / max(1, truth.sum() + got.sum()))


def si_sdr(truth: Array, got: Array) -> float:
    """Return the mean over samples of the scale-invariant signal to distortion ratio, decibels."""
    truth = truth.reshape(len(truth), -1)
    got = got.reshape(len(got), -1)
    factor = (truth * got).sum(1, keepdims=True) / (truth**2).sum(1, keepdims=True)
    signal = (factor * truth) ** 2
    noise = (got - factor * truth) ** 2
    return float((10 * np.log10(signal.sum(1) / (noise.sum(1) + 1e-12))).mean())


def spearman(truth: Array, got: Array) -> float:
    """Return the correlation of ranks; tied values have their mean rank."""
    return float(np.corrcoef(_ranks(truth), _ranks(got))[0, 1])


def edits(truth: Sequence[Hashable], got: Sequence[Hashable]) -> int:
    """Return how many symbols must be inserted, dropped or exchanged."""
    costs = list(range(len(got) + 1))
    for row, wanted in enumerate(truth, 1):
        before, costs[0] = costs[0], row
        for column, found in enumerate(got, 1):
            change = before + (wanted != found)
            before = costs[column]
            costs[column] = min(change, before + 1, costs[column - 1] + 1)
    return costs[-1]


def box_ious(first: Array, second: Array) -> Array:
    """Return intersection over union of each pair of boxes (left, top, right, bottom)."""
    low = np.maximum(first[:, None, :2], second[None, :, :2])
    high = np.minimum(first[:, None, 2:], second[None, :, 2:])
    shared = np.prod(np.maximum(high - low, 0), -1)
    areas = [np.prod(boxes[:, 2:] - boxes[:, :2], -1) for boxes in (first, second)]
    return np.asarray(shared / (areas[0][:, None] + areas[1][None] - shared + 1e-9))


def _ranks(values: Array) -> Array:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.asarray((ends - (counts - 1) / 2)[inverse])

"""How far one output of a candidate is from the float model's, over all samples.

Where the float model's value is NaN (padding, see `samples.padding`) nothing is compared.
"""

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from edgepack.packager.metrics.kinds import KINDS, OutputKind
from edgepack.packager.metrics.own_measures import measure_own
from edgepack.tasks.arrays import Bools, Floats, Tensor
from edgepack.tasks.classification.decisions import cost_of_changes, expected_cost
from edgepack.tasks.intervals import kept_low, share_low
from edgepack.tasks.overlap import overlap
from edgepack.tasks.stacking import as_rows, stacks
from edgepack.tasks.values.between_samples import neighbourhood_kept, variances_between


class OutputDistance(msgspec.Struct, frozen=True, kw_only=True):
    """One output against the float model's, over all samples.

    Attributes:
        name: The output.
        kind: What it means.
        agreement: Share of samples whose decisions all agree (for values: 1.0).
        row_agreement: Share of rows (last axis) whose arg-max agrees, of integers those that are
            equal, of a selection the rows that both have, in any order; None for values without
            clear winners.
        worst_overlap: Of a selection, the share of rows that both have in the worst sample; None
            for what is none.
        explained_variance: Share of the variance between samples that is kept: 1 - error / sum of
            squared distances to the mean over samples; 1.0 for no error, below 0 for worse than
            a constant. Of probabilities that sum is .04 a row at least.
        neighbourhood: Share that is kept of how samples differ from each other, each sample's rows
            averaged: 1 - sum of |error - mean error|² / sum of |vector - mean vector|². None
            where the output holds no vectors, or there are too few samples.
        cosine: Cosine similarity, all samples flattened into one vector.
        worst_cosine: The same of the worst sample.
        nrmse: Root-mean-square error over the float output's root-mean-square.
        worst_nrmse: The same of the worst sample.
        sqnr_db: Signal to quantization noise, decibels.
        max_abs_error: Greatest absolute difference.
        rms: Root-mean-square of the float output, in its own unit.
        worst_rms_error: Root-mean-square error of the worst sample, in the same unit: a sample on
            which the model says next to nothing does not stand out.
        agreement_low, row_agreement_low, explained_variance_low, neighbourhood_low, own_low: Lower
            bounds, one-sided, 95 %, for samples like these.
        own: What the field measures of outputs of this kind (`own_measures`); None where it is one
            of the others.
        own_words: What more that says, in a few words; "" for nothing.
        cost: Of decisions, the share of right answers that other ones are expected to cost
            (`decisions`); None of anything else, or where the float model does not tell.
        expected_cost: The same on other samples like these; None where samples are too few too.
    """

    name: str
    kind: OutputKind
    agreement: float
    row_agreement: float | None
    worst_overlap: float | None
    explained_variance: float
    neighbourhood: float | None
    cosine: float
    worst_cosine: float
    nrmse: float
    worst_nrmse: float
    sqnr_db: float
    max_abs_error: float
    rms: float
    worst_rms_error: float
    agreement_low: float
    row_agreement_low: float
    explained_variance_low: float
    neighbourhood_low: float
    own: float | None = None
    own_low: float | None = None
    own_words: str = ""
    cost: float | None = None
    expected_cost: float | None = None


def measure_distance(
    name: str,
    kind: OutputKind,
    expected: Sequence[Tensor],
    got: Sequence[Tensor],
    read: Sequence[Bools] | None = None,
    variances: list[float] | None = None,
) -> OutputDistance:
    """Measures one output over all samples.

    Args:
        name: The output.
        kind: What it means.
        expected, got: The float model's and the candidate's values, one array a sample.
        read: Which values count, an array a sample; None for all. What a value is like on average
            all samples tell, those too where it does not count.
        variances: What `variances_between` says of the expected ones; None where that is not known.
    """
    dots, sizes, norms, errors, counts, rows_differ, rows = ([] for _ in range(7))
    greatest = 0.0
    for part in stacks(expected, got):
        a, b, count = _comparable(expected[part], got[part], None if read is None else read[part])
        counts += count
        dots += _dots(a, b)
        sizes += _dots(a, a)
        norms += _dots(b, b)
        error = b - a
        errors += _dots(error, error)
        greatest = max(greatest, float(np.abs(error).max(initial=0.0)))
    for want, have in zip(expected, got, strict=True):
        same = _same_decisions(kind, want, have)
        rows_differ.append(float(same.size - same.sum()))
        rows.append(float(same.size))
    per_sample = list(zip(dots, sizes, norms, errors, strict=True))
    whole = _ratios(sum(dots), sum(sizes), sum(norms), sum(errors))
    each = [_ratios(*entry) for entry in per_sample]
    known = KINDS[kind]
    variances = variances or variances_between(expected, read)
    if known.least_variance:
        least = [known.least_variance * value.size / value.shape[-1] for value in expected]
        variances = max(variances, least, key=sum)
    neighbourhood = None
    if known.are_numbers:
        neighbourhood = neighbourhood_kept(expected, got, known.narrowest)
    agreement = 1.0 if known.are_numbers else rows_differ.count(0.0) / len(expected)
    row_agreement = 1.0 - sum(rows_differ) / max(sum(rows), 1.0)
    worst_overlap = None
    if kind is OutputKind.SELECTED:
        row_agreement = overlap(expected, got)
        pairs = zip(expected, got, strict=True)
        worst_overlap = min(overlap([want], [have]) for want, have in pairs)
    own = measure_own(kind, expected, got)
    are_decisions = kind is OutputKind.DECISION
    return OutputDistance(
        name=name,
        kind=kind,
        agreement=agreement,
        row_agreement=None if known.are_numbers and not known.rows else row_agreement,
        worst_overlap=worst_overlap,
        explained_variance=1.0 - sum(errors) / sum(variances) if sum(errors) else 1.0,
        neighbourhood=None if neighbourhood is None else neighbourhood[0],
        cosine=whole[0],
        worst_cosine=min(entry[0] for entry in each),
        nrmse=whole[1],
        worst_nrmse=max(entry[1] for entry in each),
        sqnr_db=-20.0 * math.log10(max(whole[1], 1e-10)),
        max_abs_error=greatest,
        rms=math.sqrt(sum(sizes) / max(sum(counts), 1)),
        worst_rms_error=max(
            math.sqrt(error / max(count, 1)) for error, count in zip(errors, counts, strict=True)
        ),
        agreement_low=share_low(agreement, len(expected)),
        row_agreement_low=kept_low(rows_differ, rows)
        if sum(rows_differ)
        else share_low(1.0, max(int(sum(rows)), 1)),
        explained_variance_low=kept_low(errors, variances),
        neighbourhood_low=1.0 if neighbourhood is None else neighbourhood[1],
        own=own.value if own else None,
        own_low=own.low if own else None,
        own_words=own.words if own else "",
        cost=cost_of_changes(expected, got) if are_decisions else None,
        expected_cost=expected_cost(expected, got) if are_decisions else None,
    )


def relative_error(
    expected: Sequence[Tensor], got: Sequence[Tensor], read: Sequence[Bools] | None = None
) -> float:
    """What `OutputDistance.nrmse` is, without the rest; arguments as of `measure_distance`."""
    sizes, errors = [], []
    for part in stacks(expected, got):
        a, b, _ = _comparable(expected[part], got[part], None if read is None else read[part])
        apart = b - a
        sizes += _dots(a, a)
        errors += _dots(apart, apart)
    return _ratios(0.0, sum(sizes), 0.0, sum(errors))[1]


def _comparable(
    expected: Sequence[Tensor], got: Sequence[Tensor], read: Sequence[Bools] | None
) -> tuple[Floats, Floats, list[int]]:
    """A stack's samples as rows, 0 where nothing is compared, and how many values are.

    A candidate's sample that cannot be compared (shape, NaN) counts as zeros.
    """
    a = as_rows(expected)
    counts = np.isfinite(a) if read is None else np.isfinite(a) & as_rows(read).astype(np.bool_)
    if got[0].shape != expected[0].shape:
        return a, np.zeros_like(a), [value.size for value in expected]
    b = as_rows(got)
    if not counts.all():
        a, b = np.where(counts, a, 0.0), np.where(counts, b, 0.0)
    is_broken = ~np.isfinite(b).all(axis=1)
    if is_broken.any():
        b[is_broken] = 0.0
    return a, b, counts.sum(axis=1).tolist()


def _dots(a: Floats, b: Floats) -> list[float]:
    """a @ b of each row in one thread: with several the last digits depend on their number.

    On a busy machine those of the BLAS library waited for each other longer than they computed: a
    quarter of a detector's search.
    """
    products: list[float] = np.einsum("ij,ij->i", a, b).tolist()
    return products


def _same_decisions(kind: OutputKind, want: Tensor, have: Tensor) -> Bools:
    """Of each decision in a sample whether it is the same; none where nothing can be compared."""
    if not KINDS[kind].rows:
        return np.asarray([want.shape == have.shape])
    if KINDS[kind].rows == "equal":
        same = want == have if want.shape == have.shape else np.zeros(max(want.size, 1))
        return np.atleast_1d(same).ravel().astype(np.bool_)
    in_use = ~np.isnan(want).any(axis=-1).ravel()
    none_of_them = np.zeros(max(int(in_use.sum()), 1), dtype=np.bool_)
    if want.shape != have.shape:
        return none_of_them
    if not np.isfinite(have).all(axis=-1).ravel()[in_use].all():
        return none_of_them
    same = np.atleast_1d(want.argmax(axis=-1) == have.argmax(axis=-1)).ravel()
    return np.asarray(same[in_use], dtype=np.bool_)


def _ratios(dot: float, size: float, norm: float, error: float) -> tuple[float, float]:
    """Cosine similarity and relative root-mean-square error from sums of products."""
    if error == 0.0:
        return 1.0, 0.0
    cosine = dot / math.sqrt(size * norm) if size > 0.0 and norm > 0.0 else 0.0
    return cosine, math.sqrt(error / size) if size > 0.0 else 1.0

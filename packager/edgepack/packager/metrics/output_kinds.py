"""What each output of a model means: as it is declared, or as the float model's values propose.

A distribution (not negative, sums to 1 over the last axis) or a row of scores is a decision, where
decisions differ and winners are clear; anything else is numbers. Where a model that always gives
the commonest decision would pass, agreement says nothing: the row may well be two quantities of
unlike size. Where no winner stands out, it is quantities side by side, or a vector.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from edgepack.packager.metrics.kinds import KINDS, OutputKind
from edgepack.packager.metrics.parts import find_parts
from edgepack.packager.profiles.schema import AccuracyGate
from edgepack.packager.tensors.meanings import NOTHING_KNOWN, Meaning
from edgepack.packager.wording import toml_key
from edgepack.tasks.arrays import Outputs, Tensor

ONE_MISS_FROM = 10
"""From this many samples on, one may differ whatever the budget: below 1/budget samples a single
coin flip would refuse a build."""

_FEWEST_FOR_VARIETY = 8
"""Fewer samples may well have one decision by chance."""

_FINDS_NOTHING = 0.05
"""A score of 0…1 below it is one of nothing found, as in a detector's parts (`parts`)."""

_CLEAR = 0.5
"""Half of the way from an even share to all; see `_clearness`."""

_CLEAR_IN_ROWS = 0.9
"""Characters that text recognizers give: 1.0; bins of a detector's boxes .2 to .5, bands of a
spectrum .8, hidden states 0."""

_FEWEST_CLASSES = 8
"""Rows with fewer columns are coordinates as often as classes."""


def kinds_of_outputs(
    expected: Sequence[Outputs], gate: AccuracyGate, meanings: Mapping[str, Meaning] = NOTHING_KNOWN
) -> dict[str, OutputKind]:
    """What each output means, by the float model's own outputs where nothing says it.

    Args:
        expected: The float model's outputs, one dict a sample.
        gate: Its `metric` overrules: another metric than `auto` holds for every float output whose
            meaning is not known.
        meanings: What is known; outputs that are ignored are left out.
    """
    kinds = {}
    for name, given in expected[0].items():
        if meanings.get(name) is Meaning.IGNORED:
            continue
        values = [outputs[name] for outputs in expected if outputs[name].size]
        declared = _declared(meanings.get(name), values)
        kinds[name] = declared or _propose(name, given, values, gate)
    return kinds


def _declared(meaning: Meaning | None, values: Sequence[Tensor]) -> OutputKind | None:
    """What is declared; None where nothing is, or scores of what holds no row of them."""
    if meaning is Meaning.SCORES:
        return _decision_or_sequence(values[0]) if values and values[0].ndim else None
    if meaning is Meaning.SEGMENTATION and values and values[0].dtype.kind != "f":
        return OutputKind.CLASS_MAP
    named = (kind for kind, row in KINDS.items() if row.declared is meaning)
    return next(named, None) if meaning else None


def _propose(name: str, given: Tensor, values: Sequence[Tensor], gate: AccuracyGate) -> OutputKind:
    """What an output seems to mean.

    Args:
        name: The output.
        given: What the first sample gives, which may be empty.
        values: What the samples give that give anything.
        gate: See `kinds_of_outputs`.
    """
    first = values[0] if values else given  # an empty one tells nothing
    if first.dtype.kind != "f":
        is_many = any(value.size > 1 for value in values)
        return OutputKind.INTEGERS if is_many else OutputKind.EXACT
    is_row = bool(values) and first.ndim > 0 and first.shape[-1] > 1
    if gate.metric not in ("auto", "top1_agreement") or not is_row:
        return OutputKind.NUMBERS
    if gate.metric == "top1_agreement":
        return _decision_or_sequence(first)
    if _are_decisions(values):
        return _kind_of_scores(values, gate)
    return OutputKind.WINNERS if _have_winners(name, values, gate) else OutputKind.NUMBERS


def _are_decisions(values: Sequence[Tensor]) -> bool:
    """Distributions, or a row of scores that is no embedding (those have unit length).

    Several rows that are no distributions are boxes or points rather than scores.
    """
    if all(_is_distribution(value) for value in values):
        return True
    is_one_row = all(value.ndim == 2 and value.shape[0] == 1 for value in values)
    return is_one_row and not all(_is_unit_vector(value) for value in values)


def _kind_of_scores(values: Sequence[Tensor], gate: AccuracyGate) -> OutputKind:
    """Decisions, but where their agreement says nothing: they are all alike, or not clear."""
    kind = _decision_or_sequence(values[0])
    is_alike = says_nothing(values, kind, gate)
    if all(_is_distribution(value) for value in values):
        return OutputKind.PROBABILITIES if is_alike else kind
    return OutputKind.NUMBERS if is_alike or _clearness(values) < _CLEAR else kind


def _have_winners(name: str, values: Sequence[Tensor], gate: AccuracyGate) -> bool:
    """Whether rows look like scores of classes: nearly all have a clear winner, not always one.

    Hidden states have none, a spectrum's bands and the bins of a box's distances less clear ones.
    """
    shape = values[0].shape
    is_rows = len(shape) == 3 and shape[-1] >= _FEWEST_CLASSES and values[0].size > shape[-1]
    is_told = len(values) >= _FEWEST_FOR_VARIETY and all(np.isfinite(v).all() for v in values)
    if not (is_rows and is_told):
        return False
    if _clearness(values) < _CLEAR_IN_ROWS or says_nothing(values, OutputKind.SEQUENCE, gate):
        return False
    return not find_parts([{name: value} for value in values], {name: OutputKind.NUMBERS})


def _clearness(values: Sequence[Tensor]) -> float:
    """How far from an even share to all the winner has, in the median sample's softmax, 0…1.

    A classifier is trained until its scores, read so, say how sure it is. Quantities side by side
    (three ratings of one recording) are near each other in every sample.
    """
    if len(values) < _FEWEST_FOR_VARIETY:
        return 1.0
    shares = []
    for value in values:
        scores = value.astype(np.float64).reshape(-1, value.shape[-1])
        shares.append(1.0 / np.exp(scores - scores.max(axis=-1, keepdims=True)).sum(axis=-1))
    even = 1.0 / values[0].shape[-1]
    return float((np.median(np.concatenate(shares)) - even) / (1.0 - even))


def says_nothing(values: Sequence[Tensor], kind: OutputKind, gate: AccuracyGate) -> bool:
    """Whether always giving the commonest decision would hold the budget.

    Args:
        values: The float model's scores, an array a sample.
        kind: Whether each sample holds one decision, or a sequence of them.
        gate: The budgets.
    """
    if len(values) < _FEWEST_FOR_VARIETY:
        return False
    _, count, total = _commonest(values)
    if kind is OutputKind.SEQUENCE:
        return count / total >= gate.sequence_agreement_min
    return count / total >= with_one_miss(gate.top1_agreement_min, total)


def _commonest(values: Sequence[Tensor]) -> tuple[int, int, int]:
    """The decision that most rows take, how many do, and of how many; padding is left out."""
    counts: Counter[int] = Counter()
    for value in values:
        rows = value.reshape(-1, value.shape[-1])
        counts.update(rows[~np.isnan(rows).any(axis=-1)].argmax(axis=-1).tolist())
    most = counts.most_common(1)[0] if counts else (0, 0)
    return (*most, max(sum(counts.values()), 1))


def describe_scores(
    expected: Sequence[Outputs],
    kinds: Mapping[str, OutputKind],
    gate: AccuracyGate,
    meanings: Mapping[str, Meaning],
) -> tuple[str, ...]:
    """Which rows of numbers are no scores, or say little as such, a sentence each.

    Args:
        expected, gate, meanings: See `kinds_of_outputs`.
        kinds: What it found.
    """
    remarks = []
    for name, kind in kinds.items():
        values = [outputs[name] for outputs in expected if outputs[name].size]
        if _may_be_quantities(kind, values) and gate.metric == "auto" and name not in meanings:
            remarks.append(
                f"Output '{name}' was taken for the scores of {values[0].shape[-1]} classes: "
                f"judged is which one is highest. [outputs.{toml_key(name)}] with kind = 'values' "
                "in edgepack.toml if they are quantities side by side."
            )
        is_guessed = kind is OutputKind.NUMBERS and gate.metric == "auto" and name not in meanings
        if KINDS[kind].may_score and values and (quiet := _describe_quiet(name, values)):
            remarks.append(quiet)
        is_row = bool(values) and values[0].dtype.kind == "f" and values[0].shape[:-1] == (1,)
        if not (is_row or kind is OutputKind.PROBABILITIES) or values[0].size < 2:
            continue
        if says_nothing(values, _decision_or_sequence(values[0]), gate):
            index, count, total = _commonest(values)
            found = f"The float model's decision in output '{name}' is {index} in {count} of "
            found += f"{total} {'samples' if total == len(values) else 'rows'}, so that agreement "
            found += "says little"
            if kind is OutputKind.DECISION:
                remarks.append(f"{found}: give samples of other classes too.")
            elif kind is OutputKind.PROBABILITIES:
                remarks.append(
                    f"{found}: its probabilities are judged. Give samples of other classes too."
                )
            elif is_guessed:
                remarks.append(f"{found}: its values are judged.")
        elif is_guessed and _are_decisions(values):
            remarks.append(
                f"No winner stands out in output '{name}', so its values are judged: "
                f"[outputs.{toml_key(name)}] with kind = 'scores' in edgepack.toml if the highest "
                "one wins."
            )
    return tuple(remarks)


def _may_be_quantities(kind: OutputKind, values: Sequence[Tensor]) -> bool:
    """Whether a short row was taken for scores by its values alone: angles look so too."""
    is_short = bool(values) and values[0].size < _FEWEST_CLASSES
    is_guess = kind is OutputKind.DECISION and is_short
    return is_guess and not all(_is_distribution(value) for value in values)


def _describe_quiet(name: str, values: Sequence[Tensor]) -> str:
    """Says so where what may be a score never leaves the neighbourhood of 0."""
    least = min(float(np.nanmin(value)) for value in values)
    greatest = max(float(np.nanmax(value)) for value in values)
    if least < 0.0 or not 0.0 < greatest < _FINDS_NOTHING:
        return ""
    return (
        f"Output '{name}' is at most {greatest:.2g} in all {len(values)} samples: if it is a "
        "score, the float model finds nothing in them, and they tell little. Give samples of what "
        "it is to find."
    )


def with_one_miss(budget: float, count: int) -> float:
    """The least share of samples that passes, where one of a few may always differ."""
    return budget if count < ONE_MISS_FROM else min(budget, 1.0 - 1.0 / count)


def _decision_or_sequence(value: Tensor) -> OutputKind:
    """Several rows are many decisions, whichever axis counts them: exports put time first too."""
    rows = value.size // value.shape[-1]
    return OutputKind.SEQUENCE if rows > 1 else OutputKind.DECISION


def _is_distribution(value: Tensor) -> bool:
    rows = value.astype(np.float64).reshape(-1, value.shape[-1])
    rows = rows[~np.isnan(rows).any(axis=-1)]
    return bool((rows >= -1e-6).all()) and bool(np.allclose(rows.sum(axis=-1), 1.0, atol=1e-3))


def _is_unit_vector(value: Tensor) -> bool:
    norms = np.linalg.norm(value.astype(np.float64), axis=-1)
    return bool(np.allclose(norms, 1.0, atol=1e-3))

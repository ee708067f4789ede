"""Recognize scores of classes by the float model's values.

A distribution (not negative, sums to 1 over the last axis) or a row of scores is a decision, where
decisions differ and winners are clear; anything else is unknown. Where a model that always gives
the commonest decision would pass, agreement says nothing: the row may well be two quantities of
unlike size. If no winner stands out, the row is quantities next to each other, or a vector.

A row of values behind a Sigmoid is probabilities that each stand for themselves (`find_shares`).
"""

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import onnx
from msgspec.structs import replace

from edgepack.packager.graph.queries import GraphIndex, index_graph
from edgepack.packager.source.model import SourceModel
from edgepack.packager.wording import toml_key
from edgepack.tasks.arrays import Floats, Outputs, Tensor
from edgepack.tasks.classification.measure import ROWS, TOP1, is_one_decision, one_miss
from edgepack.tasks.contract import LOSS
from edgepack.tasks.description import UNKNOWN, ModelDescription, TaskOutputs
from edgepack.tasks.doubts.meaning import MAY_BE, MIXTURE, QUANTITIES
from edgepack.tasks.likelihood import are_probabilities, is_distribution
from edgepack.tasks.unknown.measure import LOGITS, UNLIKE
from edgepack.tasks.values.parts import find_parts
from edgepack.tasks.values.strict import MAGNITUDES

FEWEST_FOR_VARIETY = 8
"""Fewer samples may well have one decision by chance: of two even classes, 2 in 2^8 draws."""

_FINDS_NOTHING = 0.05
"""A score of 0…1 below it is one of nothing found, as in a detector's parts (`parts`)."""

_CLEAR = 0.5
"""Half of the way from an even share to all; see `_clearness`."""

_CLEAR_IN_ROWS = 0.9
"""Characters that text recognizers give: 1.0; bins of a detector's boxes .2 to .5, bands of a
spectrum .8, hidden states 0."""

_TOGETHER = 0.5
"""Mean correlation of columns. Of three classifiers -.1 to .2, of forecasts .7 to .99."""

_FEWEST_CLASSES = 8
"""Rows with fewer columns are coordinates as often as classes."""


_MAY_BE_SCORES = ("classification", "probabilities", "values", UNKNOWN)

_KEEP_VALUES = frozenset(
    {"Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"}
)


def propose(expected: Sequence[Outputs], names: Sequence[str]) -> tuple[TaskOutputs, ...]:
    """Return the probable meaning of outputs, by the float model's values.

    Args:
        expected: The float model's outputs, a dict per sample.
        names: Outputs of which nothing is known.
    """
    unknown, winners, parts = [], [], []
    for name in names:
        values = [outputs[name] for outputs in expected if outputs[name].size]
        task = _propose(values or [expected[0][name]])
        if task == UNKNOWN:
            unknown.append(name)
            if _have_winners(name, values):
                winners.append(name)
        else:
            doubt = {MAY_BE: QUANTITIES} if _may_be_quantities(task, values) else {}
            parts.append(TaskOutputs(task=task, outputs=(name,), source="values", settings=doubt))
    if unknown:
        settings = {"winners": tuple(winners)} if winners else {}
        parts.append(TaskOutputs(task=UNKNOWN, outputs=tuple(unknown), settings=settings))
    return tuple(parts)


def _propose(values: Sequence[Tensor]) -> str:
    """Return the task of an output, by its samples with values."""
    first = values[0]
    if first.dtype.kind != "f":
        return "classification"
    is_row = first.size > 0 and first.ndim > 0 and first.shape[-1] > 1
    if not is_row or not _are_decisions(values):
        return UNKNOWN
    is_alike = says_nothing(values)
    if all(is_distribution(value) for value in values):
        return "probabilities" if is_alike else "classification"
    is_clear = not is_alike and _clearness(values) >= _CLEAR
    return "classification" if is_clear and _are_logits(values) else UNKNOWN


def _are_logits(values: Sequence[Tensor]) -> bool:
    """Return whether rows have the scale of logits, and columns like each other.

    Numbers above 0 that span magnitudes, and large numbers such as places in millimetres, are not.
    Columns of classes have a similar spread, and a high column goes with low others. Quantities
    side by side have units of their own; the steps of a forecast rise and fall together. In a short
    row, a column that the softmax never expects is a quantity beside greater ones, as an angle is
    next to a place.
    """
    if len({value.size for value in values}) > 1 or len(values) < FEWEST_FOR_VARIETY:
        return True
    rows = np.stack([value.astype(np.float64).ravel() for value in values])
    spreads = rows.std(axis=0)
    spans_magnitudes = rows.min() > 0.0 and rows.max() >= MAGNITUDES * rows.min()
    if spans_magnitudes or np.median(np.abs(rows)) > LOGITS:
        return False
    if spreads.max() > UNLIKE * spreads.min():
        return False
    if rows.shape[1] == 2:
        return True
    if rows.shape[1] < _FEWEST_CLASSES and _expected_counts(rows).min() < LOSS:
        return False
    together = np.asarray(np.corrcoef(rows.T))
    others = together[~np.eye(len(together), dtype=np.bool_)]
    return float(np.nanmean(others)) <= _TOGETHER


def _expected_counts(rows: Floats) -> Floats:
    """Return the number of samples of each class that the softmax of scores expects."""
    odds = np.exp(rows - rows.max(axis=1, keepdims=True))
    counts: Floats = (odds / odds.sum(axis=1, keepdims=True)).sum(axis=0)
    return counts


def _are_decisions(values: Sequence[Tensor]) -> bool:
    """Return True for distributions, or for a row of scores other than an embedding (embeddings
    have unit length).

    Several rows other than distributions are boxes or points rather than scores.
    """
    if all(is_distribution(value) for value in values):
        return True
    is_one_row = all(value.ndim == 2 and value.shape[0] == 1 for value in values)
    return is_one_row and not all(_is_unit_vector(value) for value in values)


def _have_winners(name: str, values: Sequence[Tensor]) -> bool:
    """Return whether rows look like scores of classes: most have a clear winner, and winners vary.

    Hidden states have no winners, a spectrum's bands and the bins of a box's distances less clear
    winners.
    """
    if len(values) < FEWEST_FOR_VARIETY or values[0].dtype.kind != "f":
        return False
    shape = values[0].shape
    is_rows = len(shape) == 3 and shape[-1] >= _FEWEST_CLASSES and values[0].size > shape[-1]
    if not is_rows or not all(np.isfinite(value).all() for value in values):
        return False
    if _clearness(values) < _CLEAR_IN_ROWS or says_nothing(values):
        return False
    return not find_parts([{name: value} for value in values], (name,))


def _clearness(values: Sequence[Tensor]) -> float:
    """Return the median sample's lead of the winner over an even share, in its softmax, 0…1.

    A classifier is trained until the softmax of its scores shows its confidence. Quantities next to
    each other (three ratings of the same recording) are near each other in every sample.
    """
    if len(values) < FEWEST_FOR_VARIETY:
        return 1.0
    shares = []
    for value in values:
        scores = np.nan_to_num(value.astype(np.float64).reshape(-1, value.shape[-1]))
        shares.append(1.0 / np.exp(scores - scores.max(axis=-1, keepdims=True)).sum(axis=-1))
    even = 1.0 / values[0].shape[-1]
    return float((np.median(np.concatenate(shares)) - even) / (1.0 - even))


def says_nothing(values: Sequence[Tensor]) -> bool:
    """Return whether always giving the commonest decision would keep the task by its measure.

    Args:
        values: The float model's scores, an array a sample.
    """
    if len(values) < FEWEST_FOR_VARIETY:
        return False
    _, count, total = _commonest(values)
    if not is_one_decision(values[0]):
        return count / total >= ROWS.least
    return count / total >= min(TOP1.least, 1.0 - one_miss(total))


def _commonest(values: Sequence[Tensor]) -> tuple[int, int, int]:
    """Return the most frequent decision of rows, its count, and the number of rows; without
    padding.
    """
    counts: Counter[int] = Counter()
    for value in values:
        rows = value.reshape(-1, value.shape[-1])
        counts.update(rows[~np.isnan(rows).any(axis=-1)].argmax(axis=-1).tolist())
    most = counts.most_common(1)[0] if counts else (0, 0)
    return (*most, max(sum(counts.values()), 1))


def describe_scores(
    expected: Sequence[Outputs], description: ModelDescription, names: Sequence[str]
) -> tuple[str, ...]:
    """Return rows of numbers that are not scores, or are uninformative scores, a sentence each.

    Args:
        expected: The float model's outputs, a dict per sample.
        description: Meaning of the outputs.
        names: The outputs that are looked at.
    """
    remarks: list[str] = []
    for part in description.parts:
        for name in part.outputs:
            values = [outputs[name] for outputs in expected if outputs[name].size]
            if name in names and values and part.task in _MAY_BE_SCORES:
                remarks += _describe_row(part, name, values)
    return tuple(remarks)


def _describe_row(part: TaskOutputs, name: str, values: Sequence[Tensor]) -> Iterator[str]:
    is_guess = part.source in ("values", "unknown")
    if is_guess and _may_be_quantities(part.task, values):
        yield (
            f"Output '{name}' was taken for the scores of {values[0].shape[-1]} classes: "
            f"judged is which one is highest. [outputs.{toml_key(name)}] with task = 'values' "
            "in edgepack.toml if they are quantities side by side."
        )
    if part.task in ("values", UNKNOWN) and (quiet := _describe_quiet(name, values)):
        yield quiet
    is_row = values[0].dtype.kind == "f" and values[0].shape[:-1] == (1,)
    if not (is_row or part.task == "probabilities") or values[0].size < 2:
        return
    if says_nothing(values):
        index, count, total = _commonest(values)
        found = f"The float model's decision in output '{name}' is {index} in {count} of "
        found += f"{total} {'samples' if total == len(values) else 'rows'}, so that agreement "
        found += "says little"
        if part.task == "classification":
            yield f"{found}: give samples of other classes too."
        elif part.task == "probabilities":
            yield f"{found}: its probabilities are judged. Give samples of other classes too."
        elif part.task == UNKNOWN:
            yield f"{found}: its values are judged."
    elif part.task == UNKNOWN and _are_decisions(values):
        yield (
            f"Nothing shows that output '{name}' holds scores, so its values are judged: "
            f"[outputs.{toml_key(name)}] with task = 'classification' in edgepack.toml if the "
            "highest one wins."
        )


def _may_be_quantities(task: str, values: Sequence[Tensor]) -> bool:
    """Return whether a short row was taken for scores by its values alone: angles look so too."""
    if not values:
        return False
    is_short = values[0].dtype.kind == "f" and values[0].size < _FEWEST_CLASSES
    is_decision = task == "classification" and is_short and is_one_decision(values[0])
    return is_decision and not all(is_distribution(value) for value in values)


def _describe_quiet(name: str, values: Sequence[Tensor]) -> str:
    """Report a possible score that always stays near 0."""
    finite = [found for value in values if (found := value[np.isfinite(value)]).size]
    if not finite:
        return ""
    least = min(float(value.min()) for value in finite)
    greatest = max(float(value.max()) for value in finite)
    if least < 0.0 or not 0.0 < greatest < _FINDS_NOTHING:
        return ""
    return (
        f"Output '{name}' is at most {greatest:.2g} in all {len(values)} samples: if it is a "
        "score, the float model finds nothing in them, and they tell little. Give samples of what "
        "it is to find."
    )


def _is_unit_vector(value: Tensor) -> bool:
    norms = np.linalg.norm(value.astype(np.float64), axis=-1)
    return bool(np.allclose(norms, 1.0, atol=1e-3))


_NO_MIXTURE = ("values", "classification", "probabilities", "embedding")
"""Tasks that may be declared for a mixture and measure little of its likelihood."""


def doubt_mixtures(source: SourceModel, parts: Sequence[TaskOutputs]) -> Iterator[TaskOutputs]:
    """Yield the parts, with a mark at declared values or scores that a Softmax gives in part.

    Args:
        source: The model.
        parts: Outputs with a known meaning.
    """
    index = index_graph(source.model.graph)
    for part in parts:
        is_mixed = any(_is_mixed(index, name) for name in part.outputs)
        if part.task in _NO_MIXTURE and part.source == "declared" and is_mixed:
            yield replace(part, settings={**part.settings, MAY_BE: MIXTURE})
        else:
            yield part


def _is_mixed(index: GraphIndex, name: str) -> bool:
    """Return whether an output joins the result of a Softmax and other results."""
    node = _maker(index, name)
    if node is None or node.op_type != "Concat":
        return False
    makers = [_maker(index, entry) for entry in node.input]
    ops = {"" if maker is None else maker.op_type for maker in makers}
    return "Softmax" in ops and len(ops) > 1


def _maker(index: GraphIndex, name: str) -> onnx.NodeProto | None:
    """Return the node that computes a tensor's values; None for an input."""
    node = index.maker(name)
    while node is not None and node.op_type in _KEEP_VALUES:
        node = index.maker(node.input[0])
    return node


def find_shares(
    source: SourceModel, expected: Sequence[Outputs], names: Sequence[str]
) -> Iterator[TaskOutputs]:
    """Yield the outputs of a single row with values that a Sigmoid made and the samples confirm.

    Args:
        source: The model.
        expected: The float model's outputs, one dict a sample.
        names: Outputs of which nothing is known.
    """
    index = index_graph(source.model.graph)
    for name in names:
        values = [outputs[name] for outputs in expected]
        is_row = all(value.size <= max(value.shape, default=1) for value in values)
        tensor = name
        while (at := index.producers.get(tensor)) is not None:
            node = index.graph.node[at]
            if node.op_type not in _KEEP_VALUES:
                if node.op_type == "Sigmoid" and is_row and are_probabilities(values):
                    yield TaskOutputs(task="probabilities", outputs=(name,), source="graph")
                break
            tensor = node.input[0]

"""Predictions of edgepack's reports, compared with the task's measurements on unseen data."""

from collections.abc import Iterator

from benchmarks.packager.contestants import CONTESTANTS, OWN
from benchmarks.packager.records import Prediction, Record, Results
from benchmarks.packager.table import KEPT_SHARE, kept_share

NEAR = 0.01
"""A prediction and the truth count as the same within this share of the task."""

_GOAL = 0.95
"""Share of the models of which that should be so."""


def predictions(results: Results) -> str:
    """Return a Markdown table of edgepack's models and rejections, and a count; "" without data.

    Args:
        results: Measurements; records without predictions are left out.
    """
    floats = {record.subject.task: record for record in results.float_records}
    rows = [
        (record, floats[record.subject.task], title)
        for title, record in _own(results)
        if record.outcome == "refused" or (record.prediction and record.verdict)
    ]
    shares = [
        (record.prediction.task_kept, _measured(record, reference))
        for record, reference, _ in rows
        if record.prediction is not None
    ]
    if not shares:
        return ""
    lines = [
        "| tool | task | the report | the task, expected | the task, measured | apart |",
        "| --- | --- | --- | --- | --- | --- |",
        *(_line(record, reference, title) for record, reference, title in rows),
    ]
    near = sum(abs(said - true) <= NEAR for said, true in shares)
    kept = sum(true >= KEPT_SHARE for _, true in shares)
    counts = (
        f"Within {NEAR:.0%} of each other: {near} of {len(shares)} (the goal is {_GOAL:.0%}). "
        f"{KEPT_SHARE:.0%} of the task or more: {kept} of {len(shares)} that were not refused."
    )
    return "\n".join([counts, "", *lines])


def _own(results: Results) -> Iterator[tuple[str, Record]]:
    for contestant in CONTESTANTS:
        for record in results.records:
            subject = record.subject
            if (subject.peer, subject.setting) == (OWN, contestant.setting):
                yield contestant.title, record


def _measured(record: Record, reference: Record) -> float:
    if record.verdict is None or reference.verdict is None:
        raise ValueError("was not judged")
    return kept_share(record.verdict.metric, reference.verdict.metric)


def _line(record: Record, reference: Record, title: str) -> str:
    cells = [title, record.subject.task]
    if record.prediction is None:
        return f"| {' | '.join([*cells, 'refused', '–', '–', '–'])} |"
    said, true = record.prediction.task_kept, _measured(record, reference)
    apart = f"{true - said:+.2%}"
    if abs(true - said) > NEAR:
        apart = f"**{apart}**"
    cells += [_told(record.prediction), f"{said:.2%}", f"{true:.2%}", apart]
    return f"| {' | '.join(cells)} |"


def _told(prediction: Prediction) -> str:
    """Return a prediction as text, e.g. `detection_f1 0.9950 (at least 0.9870)`."""
    low = f" (at least {prediction.low:.4f})" if prediction.low is not None else ""
    return f"{prediction.metric} {prediction.value:.4f}{low}"

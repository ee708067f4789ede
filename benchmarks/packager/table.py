"""Results as Markdown: an overview for each target, a table of numbers for each task."""

from collections.abc import Sequence

from benchmarks.packager.contestants import CALIBRATORS, CONTESTANTS, TARGETS, Contestant
from benchmarks.packager.records import FLOAT, Race, Record, Results, Subject, name_of

KEPT_SHARE = 0.99
"""Of the float model's metric: what a model must keep to count as kept."""

_MISSING = "–"


def kept_share(metric: float, float_metric: float) -> float:
    """Return the kept share of the float model's metric; above 1 if better.

    Args:
        metric, float_metric: Greater is better, not negative.
    """
    return metric / float_metric if float_metric > 0 else float(metric >= float_metric)


def is_kept(record: Record, float_record: Record) -> bool:
    """Return whether a record's model keeps the float model's metric."""
    if record.verdict is None or float_record.verdict is None:
        return False
    return kept_share(record.verdict.metric, float_record.verdict.metric) >= KEPT_SHARE


def speed(record: Record, race: Race | None = None) -> float | None:
    """Return the speed relative to the float model; below 1 is slower.

    Args:
        record: The measurement.
        race: Source of the times if the model took part; else the times of the two alone.
    """
    name = name_of(record.subject)
    if race is not None and name in race.latencies_ms:
        return race.latencies_ms[FLOAT] / race.latencies_ms[name]
    verdict = record.verdict
    return verdict.float_latency_ms / verdict.latency_ms if verdict else None


def overview(results: Results, target: str, *, told: str = "") -> str:
    """Return a Markdown table: the contestants for a target, and their results on every task.

    Args:
        results: The measurements.
        target: A key of `TARGETS`.
        told: Addition to its title, or "".
    """
    floats = _by_task(results.float_records)
    found = {_identity(record.subject): record for record in results.records}
    lines = [
        f"| {TARGETS[target]}{told} | {' | '.join(floats)} |",
        f"| --- |{' --- |' * len(floats)}",
        f"| float model | {' | '.join(_float_cell(floats[task]) for task in floats)} |",
    ]
    for contestant in _of_target(target):
        records = [found.get((contestant.peer, contestant.setting, task)) for task in floats]
        if any(records):
            cells = (
                _cell(record, floats[task], results.race_of(task))
                for task, record in zip(floats, records, strict=True)
            )
            lines.append(f"| {contestant.title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def details(results: Results, task: str) -> str:
    """Return a Markdown table: all numbers of a task."""
    float_record = _by_task(results.float_records)[task]
    found = {_identity(record.subject): record for record in results.records}
    lines = [
        "| target | tool | metric | kept | size | latency | speed "
        "| made in | processor time | peak memory | at |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for target in TARGETS:
        for contestant in _of_target(target):
            record = found.get((contestant.peer, contestant.setting, task))
            if record:
                lines.append(_detail(target, contestant, record, float_record))
    return "\n".join(lines)


def failures(results: Results) -> str:
    """Return a Markdown list: the last words of each failure."""
    entries = (*CONTESTANTS, *CALIBRATORS)
    titles = {(entry.peer, entry.setting): entry.title for entry in entries}
    lines = [
        f"- {titles[record.subject.peer, record.subject.setting]}, {record.subject.task}: "
        f"{record.outcome}. {_one_line(record.because)}".rstrip()
        for record in (*results.records, *results.calibrations)
        if record.outcome not in {"judged", "made"}
    ]
    return "\n".join(lines)


def _cell(record: Record | None, float_record: Record, race: Race | None) -> str:
    """Return a cell, e.g. `0.950 (1.52x)`, bold if the metric is kept; or the failure."""
    if record is None:
        return _MISSING
    if record.verdict is None:
        return record.outcome
    text = f"{record.verdict.metric:.3f} ({speed(record, race):.2f}x)"
    return f"**{text}**" if is_kept(record, float_record) else text


def _float_cell(record: Record) -> str:
    verdict = record.verdict
    return f"{verdict.metric:.3f} ({verdict.latency_ms:.2f} ms)" if verdict else record.outcome


def _detail(target: str, contestant: Contestant, record: Record, float_record: Record) -> str:
    verdict, reference = record.verdict, float_record.verdict
    made = [
        f"{record.wall_s:.1f} s" if record.wall_s is not None else _MISSING,
        f"{record.cpu_s:.1f} s" if record.cpu_s is not None else _MISSING,
        f"{record.peak_bytes / 1e6:.0f} MB" if record.peak_bytes is not None else _MISSING,
        record.measured_at[:16].replace("T", " "),
    ]
    judged = [record.outcome, *(_MISSING,) * 4]
    if verdict and reference:
        judged = [
            f"{verdict.metric:.4f}",
            f"{kept_share(verdict.metric, reference.metric):.1%}",
            f"{verdict.size_bytes / 1e6:.2f} MB",
            f"{verdict.latency_ms:.2f} ms",
            f"{speed(record):.2f}x",
        ]
    told = [record.note] if record.note else []
    if record.candidates:
        told.append(f"{record.candidates} candidate{'s' if record.candidates > 1 else ''}")
    title = f"{contestant.title} ({', '.join(told)})" if told else contestant.title
    return f"| {' | '.join([target, title, *judged, *made])} |"


def _of_target(target: str) -> Sequence[Contestant]:
    return [contestant for contestant in CONTESTANTS if contestant.target == target]


def _by_task(records: Sequence[Record]) -> dict[str, Record]:
    return {record.subject.task: record for record in records}


def _identity(subject: Subject) -> tuple[str, str, str]:
    return subject.peer, subject.setting, subject.task


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("|", "¦")

"""What edgepack promises of its models, checked against the measurements, misses included."""

from collections.abc import Iterator

from benchmarks.packager.contestants import CONTESTANTS, OWN, Contestant
from benchmarks.packager.records import Record, Results
from benchmarks.packager.table import is_kept, speed

REFERENCE = ("ort", "static-default")
"""The contestant whose time and memory are the measure: ONNX Runtime's MinMax."""

MOST_TIME = 2.0
"""In processor time, which other programs on the machine change little. It is promised where the
first candidate holds the budget: what a search takes is up to the model."""

MOST_MEMORY = 1.5

_SPEED_NOISE = 0.95
"""Two medians on a shared machine count as equal within this."""


_MISSED = "**no**"
_SEARCHED = "searched"
_UNKNOWN = "–"
_GOALS = (
    "keeps 99 % or refuses",
    "as fast as the fastest that keeps it",
    f"processor time ≤ {MOST_TIME:g}x MinMax, where nothing is searched",
    f"memory ≤ {MOST_MEMORY:g}x MinMax",
)


def check_goals(results: Results) -> str:
    """A Markdown table: each of edgepack's models against each goal."""
    lines = [f"| target | task | {' | '.join(_GOALS)} |", f"| --- | --- |{' --- |' * len(_GOALS)}"]
    lines += [f"| {' | '.join(row)} |" for row in _all_rows(results)]
    return "\n".join(lines)


def count_goals(results: Results) -> str:
    """A Markdown list: how many of edgepack's models hold each goal."""
    rows = list(_all_rows(results))
    lines = []
    for column, goal in enumerate(_GOALS, start=2):
        known = [row[column] for row in rows if not row[column].startswith((_UNKNOWN, _SEARCHED))]
        held = sum(not cell.startswith(_MISSED) for cell in known)
        lines.append(f"- {goal}: {held} of {len(known)}")
    return "\n".join(lines)


def _all_rows(results: Results) -> Iterator[tuple[str, ...]]:
    for contestant in CONTESTANTS:
        if contestant.peer == OWN:
            yield from _rows(contestant, results)


def _rows(contestant: Contestant, results: Results) -> Iterator[tuple[str, ...]]:
    """Setting, task, and a cell for each goal."""
    floats = {record.subject.task: record for record in results.float_records}
    for record in results.records:
        subject = record.subject
        if (subject.peer, subject.setting) != (contestant.peer, contestant.setting):
            continue
        yield (
            contestant.setting,
            subject.task,
            _accuracy(record, floats[subject.task]),
            _speed(contestant, record, results, floats[subject.task]),
            *_cost(record, results),
        )


def _accuracy(record: Record, float_record: Record) -> str:
    if record.verdict is None:
        return record.outcome if record.outcome == "refused" else f"{_MISSED}: {record.outcome}"
    return "yes" if is_kept(record, float_record) else f"{_MISSED}: {record.verdict.metric:.3f}"


def _speed(contestant: Contestant, record: Record, results: Results, float_record: Record) -> str:
    """By the race where there was one; else by each one's own speed beside the float model."""
    if contestant.target != "cpu":
        return _UNKNOWN
    rivals = {
        (entry.peer, entry.setting): entry.title
        for entry in CONTESTANTS
        if entry.peer != OWN and entry.target == contestant.target
    }
    race = results.race_of(record.subject.task)
    own = speed(record, race)
    if own is None:
        return _UNKNOWN
    best, title = 1.0, "float model"
    for other in results.records:
        name = rivals.get((other.subject.peer, other.subject.setting))
        if not name or other.subject.task != record.subject.task:
            continue
        other_speed = speed(other, race)
        if other_speed is not None and is_kept(other, float_record) and other_speed > best:
            best, title = other_speed, name
    told = f"{own:.2f}x; {title} {best:.2f}x{'' if race else ' (not in turn)'}"
    return told if own >= best * _SPEED_NOISE else f"{_MISSED}: {told}"


def _cost(record: Record, results: Results) -> tuple[str, str]:
    reference = next(
        (
            other
            for other in results.records
            if (other.subject.peer, other.subject.setting) == REFERENCE
            and other.subject.task == record.subject.task
        ),
        None,
    )
    if not reference or not reference.cpu_s or not reference.peak_bytes:
        return _UNKNOWN, _UNKNOWN
    if not record.cpu_s or not record.peak_bytes:
        return _UNKNOWN, _UNKNOWN
    remark = "" if _hour(record) == _hour(reference) else " (another hour)"
    time = record.cpu_s / reference.cpu_s
    return (
        f"{_SEARCHED}: {time:.1f}x{remark}"
        if _is_searched(record)
        else _ratio(time, MOST_TIME, remark),
        _ratio(record.peak_bytes / reference.peak_bytes, MOST_MEMORY, ""),
    )


def _is_searched(record: Record) -> bool:
    """Whether more than one candidate was made; a refusal comes after that, always."""
    return record.outcome == "refused" or (record.candidates or 0) > 1


def _hour(record: Record) -> str:
    return record.measured_at[:13]


def _ratio(ratio: float, limit: float, remark: str) -> str:
    told = f"{ratio:.1f}x{remark}"
    return told if ratio <= limit else f"{_MISSED}: {told}"

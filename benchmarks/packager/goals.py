"""Goals of edgepack for its models, checked against the measurements, misses included."""

from collections.abc import Iterator

from benchmarks.packager.contestants import CONTESTANTS, OWN, Contestant
from benchmarks.packager.costs import (
    MISSED,
    MOST_MEMORY,
    MOST_TIME,
    SEARCHED,
    UNKNOWN,
    cost_cells,
)
from benchmarks.packager.records import Record, Results
from benchmarks.packager.table import is_kept, speed

_SPEED_NOISE = 0.95
"""Two medians on a shared machine count as equal within this."""

_GOALS = (
    "keeps 99 % or refuses",
    "as fast as the fastest that keeps it",
    f"time ≤ {MOST_TIME:g}x MinMax, where nothing is searched",
    f"processor time ≤ {MOST_TIME:g}x MinMax without what the vendor's simulator takes by itself",
    f"memory ≤ {MOST_MEMORY:g}x MinMax",
)


def check_goals(results: Results) -> str:
    """Return a Markdown table: each of edgepack's models against each goal."""
    lines = [f"| target | task | {' | '.join(_GOALS)} |", f"| --- | --- |{' --- |' * len(_GOALS)}"]
    lines += [f"| {' | '.join(row)} |" for row in _all_rows(results)]
    return "\n".join(lines)


def count_goals(results: Results) -> list[tuple[str, str]]:
    """Return the goals, and the number of models that hold each goal, e.g. `29 of 30`."""
    rows = list(_all_rows(results))
    counts = []
    for column, goal in enumerate(_GOALS, start=2):
        known = [row[column] for row in rows if not row[column].startswith((UNKNOWN, SEARCHED))]
        held = sum(not cell.startswith(MISSED) for cell in known)
        counts.append((goal, f"{held} of {len(known)}"))
    return counts


def _all_rows(results: Results) -> Iterator[tuple[str, ...]]:
    for contestant in CONTESTANTS:
        if contestant.peer == OWN:
            yield from _rows(contestant, results)


def _rows(contestant: Contestant, results: Results) -> Iterator[tuple[str, ...]]:
    """Yield setting, task, and a cell for each goal."""
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
            *cost_cells(record, results),
        )


def _accuracy(record: Record, float_record: Record) -> str:
    if record.verdict is None:
        return record.outcome if record.outcome == "refused" else f"{MISSED}: {record.outcome}"
    return "yes" if is_kept(record, float_record) else f"{MISSED}: {record.verdict.metric:.3f}"


def _speed(contestant: Contestant, record: Record, results: Results, float_record: Record) -> str:
    """Return the speed by the race, or without a race by each model's own speed against the float
    model.
    """
    if contestant.target != "cpu":
        return UNKNOWN
    rivals = {
        (entry.peer, entry.setting): entry.title
        for entry in CONTESTANTS
        if entry.peer != OWN and entry.target == contestant.target
    }
    race = results.race_of(record.subject.task)
    own = speed(record, race)
    if own is None:
        return UNKNOWN
    best, title = 1.0, "float model"
    for other in results.records:
        name = rivals.get((other.subject.peer, other.subject.setting))
        if not name or other.subject.task != record.subject.task:
            continue
        other_speed = speed(other, race)
        if other_speed is not None and is_kept(other, float_record) and other_speed > best:
            best, title = other_speed, name
    told = f"{own:.2f}x; {title} {best:.2f}x{'' if race else ' (not in turn)'}"
    return told if own >= best * _SPEED_NOISE else f"{MISSED}: {told}"

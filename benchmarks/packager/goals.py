"""What edgepack promises of its models, checked against the measurements, misses included."""

from collections.abc import Iterator

from benchmarks.packager.contestants import CONTESTANTS, OWN, Contestant
from benchmarks.packager.records import Record, Results
from benchmarks.packager.table import is_kept, speed

REFERENCE = ("ort", "static-default")
"""The contestant whose time and memory are the measure: ONNX Runtime's MinMax."""

MOST_TIME = 2.0
"""In processor time, which other programs on the machine change little."""

MOST_MEMORY = 1.5

_SPEED_NOISE = 0.95
"""Two medians on a shared machine count as equal within this."""


def check_goals(results: Results) -> str:
    """A Markdown table: each of edgepack's models against each goal."""
    lines = [
        "| target | task | keeps 99 % or refuses | as fast as the fastest that keeps it | "
        f"processor time ≤ {MOST_TIME:g}x MinMax | memory ≤ {MOST_MEMORY:g}x MinMax |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for contestant in CONTESTANTS:
        if contestant.peer == OWN:
            lines += _rows(contestant, results)
    return "\n".join(lines)


def _rows(contestant: Contestant, results: Results) -> Iterator[str]:
    floats = {record.subject.task: record for record in results.float_records}
    for record in results.records:
        subject = record.subject
        if (subject.peer, subject.setting) != (contestant.peer, contestant.setting):
            continue
        cells = (
            _accuracy(record, floats[subject.task]),
            _speed(contestant, record, results, floats[subject.task]),
            *_cost(record, results),
        )
        yield f"| {contestant.setting} | {subject.task} | {' | '.join(cells)} |"


def _accuracy(record: Record, float_record: Record) -> str:
    if record.verdict is None:
        return record.outcome if record.outcome == "refused" else f"**no**: {record.outcome}"
    return "yes" if is_kept(record, float_record) else f"**no**: {record.verdict.metric:.3f}"


def _speed(contestant: Contestant, record: Record, results: Results, float_record: Record) -> str:
    own = speed(record)
    if own is None or contestant.target != "cpu":
        return "–"
    rivals = {
        (entry.peer, entry.setting): entry.title
        for entry in CONTESTANTS
        if entry.peer != OWN and entry.target == contestant.target
    }
    best, title = 1.0, "float model"
    for other in results.records:
        name = rivals.get((other.subject.peer, other.subject.setting))
        other_speed = speed(other)
        if (
            name
            and other_speed is not None
            and other.subject.task == record.subject.task
            and is_kept(other, float_record)
            and other_speed > best
        ):
            best, title = other_speed, name
    told = f"{own:.2f}x; {title} {best:.2f}x"
    return told if own >= best * _SPEED_NOISE else f"**no**: {told}"


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
        return "–", "–"
    if not record.cpu_s or not record.peak_bytes:
        return "–", "–"
    return (
        _ratio(record.cpu_s / reference.cpu_s, MOST_TIME),
        _ratio(record.peak_bytes / reference.peak_bytes, MOST_MEMORY),
    )


def _ratio(ratio: float, limit: float) -> str:
    return f"{ratio:.1f}x" if ratio <= limit else f"**no**: {ratio:.1f}x"

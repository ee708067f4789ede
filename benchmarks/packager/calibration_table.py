"""Cost of calibration alone, as a Markdown table, and the count of the reached goal."""

from collections.abc import Iterator
from statistics import median

from benchmarks.packager.contestants import CALIBRATORS, CONTESTANTS, REFERENCE, Contestant
from benchmarks.packager.costs import MISSED, MOST_MEMORY, UNKNOWN, held
from benchmarks.packager.records import Cost, Record, Results

_RIVALS = tuple(
    entry
    for entry in CONTESTANTS
    if entry.peer == REFERENCE.peer and entry.setting == "static-percentile"
)
"""Contestants that are the reference but for the calibration method."""


def calibration_costs(results: Results) -> str:
    """Return a Markdown table: each of our calibration methods on every task."""
    tasks = [record.subject.task for record in results.float_records]
    lines = [
        f"| peak memory (processor time) | {' | '.join(tasks)} |",
        f"| --- |{' --- |' * len(tasks)}",
        f"| {REFERENCE.title} | {' | '.join(_reference(results, task) for task in tasks)} |",
    ]
    for calibrator in CALIBRATORS:
        cells = [_own_cell(_find(results.calibrations, calibrator, task)) for task in tasks]
        lines.append(f"| {calibrator.title} | {' | '.join(cells)} |")
    for rival in _RIVALS:
        cells = [_rival_cell(results, rival, task) for task in tasks]
        lines.append(f"| {rival.title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def count_calibrators(results: Results) -> tuple[str, str]:
    """Return the goal of the calibration methods, and its count, e.g. `35 of 36`."""
    cells = [
        cell for cell in (_own_cell(record) for record in results.calibrations) if cell != UNKNOWN
    ]
    count = sum(not cell.startswith(MISSED) for cell in cells)
    return f"memory ≤ {MOST_MEMORY:g}x MinMax, for every calibrator", f"{count} of {len(cells)}"


def _own_cell(record: Record | None) -> str:
    if record is None or record.reference is None:
        return UNKNOWN
    if record.outcome != "made" or record.cost is None:
        return f"{MISSED}: {record.outcome}"
    ratio, told = _beside(record.cost, record.reference)
    return held(ratio, MOST_MEMORY, told)


def _rival_cell(results: Results, rival: Contestant, task: str) -> str:
    record, reference = (_find(results.records, entry, task) for entry in (rival, REFERENCE))
    if not (record and record.cost and reference and reference.cost):
        return UNKNOWN
    return _beside(record.cost, reference.cost)[1] if record.verdict else record.outcome


def _beside(cost: Cost, reference: Cost) -> tuple[float, str]:
    """Return the ratio of memory, and both values as text."""
    ratio = cost.peak_bytes / reference.peak_bytes
    return ratio, f"{ratio:.1f}x ({cost.cpu_s / reference.cpu_s:.1f}x)"


def _reference(results: Results, task: str) -> str:
    """Return the medians of the runs next to our methods."""
    costs = list(_references(results, task))
    if not costs:
        return UNKNOWN
    peak_bytes = median(cost.peak_bytes for cost in costs)
    return f"{peak_bytes / 1e6:.0f} MB ({median(cost.cpu_s for cost in costs):.1f} s)"


def _references(results: Results, task: str) -> Iterator[Cost]:
    for record in results.calibrations:
        if record.subject.task == task and record.reference is not None:
            yield record.reference


def _find(records: tuple[Record, ...], entry: Contestant, task: str) -> Record | None:
    return next(
        (
            record
            for record in records
            if (record.subject.peer, record.subject.setting, record.subject.task)
            == (entry.peer, entry.setting, task)
        ),
        None,
    )

"""Cost of our build compared with ONNX Runtime's MinMax, and the check against the goals."""

from benchmarks.packager.contestants import REFERENCE
from benchmarks.packager.records import Cost, Record, Results

MOST_TIME = 2.0
"""It is promised where the first candidate holds the budget: what a search takes is up to the
model."""

MOST_MEMORY = 1.5

QUIET_SHARE = 0.05
"""Of the machine's processor time: others that take less leave a program its wall time. The load
average does not tell them from what the benchmark itself ran before."""

MISSED = "**no**"
SEARCHED = "searched"
UNKNOWN = "–"


def cost_cells(record: Record, results: Results) -> tuple[str, str, str]:
    """Return the cost of a build, as multiples of the reference's.

    Args:
        record: A record of ours.
        results: Source of a separately measured reference, for old records without a reference.

    Returns:
        Three cells of the goals' table: time, processor time without that of a vendor's simulator
        (unknown where none ran, or candidates were searched), and memory.
    """
    own, beside, remarks = record.cost, record.reference, []
    if beside is None:
        reference = _reference(record, results)
        beside = reference.cost if reference else None
        remarks = ["another hour"] if reference and _hour(reference) != _hour(record) else []
    if own is None or beside is None or record.outcome == "crashed":
        return UNKNOWN, UNKNOWN, UNKNOWN
    return (
        _time_cell(record, own, beside, results.host.cores, remarks),
        _own_time_cell(record, own, beside),
        _memory_cell(record, own, beside),
    )


def held(ratio: float, limit: float, told: str) -> str:
    """Return a ratio as text, marked beyond the limit."""
    return told if ratio <= limit else f"{MISSED}: {told}"


def _time_cell(record: Record, own: Cost, beside: Cost, cores: int, remarks: list[str]) -> str:
    """Return the time that counts first, wall or processor time, with the other in brackets."""
    ratios = {"wall": own.wall_s / beside.wall_s, "processor": own.cpu_s / beside.cpu_s}
    alone = {}
    if record.simulator is not None:
        alone["wall"] = record.simulator.wall_s / beside.wall_s
        alone["processor"] = record.simulator.cpu_s / beside.cpu_s
    counts, other = "processor", "wall"
    if _is_undisturbed(own, cores) and _is_undisturbed(beside, cores):
        counts, other = other, counts
    told = [f"{other} {ratios[other]:.1f}x", *_alone(alone.get(counts)), *remarks]
    cell = f"{counts} {ratios[counts]:.1f}x ({'; '.join(told)})"
    return f"{SEARCHED}: {cell}" if _is_searched(record) else held(ratios[counts], MOST_TIME, cell)


def _own_time_cell(record: Record, own: Cost, beside: Cost) -> str:
    if record.simulator is None or _is_searched(record):
        return UNKNOWN
    ratio = (own.cpu_s - record.simulator.cpu_s) / beside.cpu_s
    return held(ratio, MOST_TIME, f"{ratio:.1f}x")


def _memory_cell(record: Record, own: Cost, beside: Cost) -> str:
    ratio = own.peak_bytes / beside.peak_bytes
    simulator = record.simulator
    alone = _alone(simulator.peak_bytes / beside.peak_bytes if simulator else None)
    cell = f"{ratio:.1f}x ({alone[0]})" if alone else f"{ratio:.1f}x"
    return held(ratio, MOST_MEMORY, cell)


def _alone(ratio: float | None) -> list[str]:
    return [] if ratio is None else [f"the simulator alone {ratio:.1f}x"]


def _is_undisturbed(cost: Cost, cores: int) -> bool:
    """Return whether other programs left the machine alone; unknown for old measurements."""
    return cost.others_s is not None and cost.others_s < QUIET_SHARE * cores * cost.wall_s


def _reference(record: Record, results: Results) -> Record | None:
    return next(
        (
            other
            for other in results.records
            if (other.subject.peer, other.subject.setting) == (REFERENCE.peer, REFERENCE.setting)
            and other.subject.task == record.subject.task
        ),
        None,
    )


def _is_searched(record: Record) -> bool:
    """Return whether several candidates were made; a rejection always follows several."""
    return record.outcome == "refused" or (record.candidates or 0) > 1


def _hour(record: Record) -> str:
    return record.measured_at[:13]

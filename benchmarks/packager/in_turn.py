"""Our builds right after ONNX Runtime's MinMax, so that both run under equal conditions.

A run of a few seconds differs from the next run by a fifth. So short builds take several turns, and
costs of both are medians.
"""

import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.packager.contestants import REFERENCE, Contestant
from benchmarks.packager.environments import Environment, EnvironmentFailedError, prepare
from benchmarks.packager.making import PreparedTask, Terms, make, work_root
from benchmarks.packager.records import Cost, Record

TURNS = {4.0: 9, 20.0: 3}
"""How often a build that takes so long is made, by wall time in seconds; a longer one once."""


def make_in_turn(
    contestant: Contestant,
    prepared: PreparedTask,
    environment: Environment,
    terms: Terms,
    work: Path,
) -> tuple[Record, Path]:
    """Make edgepack's model, each time right after the reference.

    Args:
        contestant: A setting of edgepack.
        prepared: The task.
        environment: Environment of edgepack.
        terms: The run's terms.
        work: Folder for results.

    Returns:
        The last turn's record, with the median costs of both, and its folder.
    """
    records: list[Record] = []
    references: list[Cost] = []
    while True:
        if reference := measure_reference(prepared, terms):
            references.append(reference)
        folder = work / str(len(records))
        folder.mkdir()
        records.append(make(contestant, prepared, environment, terms, folder))
        last = records[-1]
        if last.outcome != "made" or len(records) >= _turns(records[0].wall_s or 0.0):
            break
    costs = [record.cost for record in records if record.cost is not None]
    taken = msgspec.structs.asdict(medians(costs)) if costs else {}
    beside = medians(references) if references else None
    return msgspec.structs.replace(last, **taken, turns=len(records), reference=beside), folder


def _turns(wall_s: float) -> int:
    return next((turns for limit_s, turns in TURNS.items() if wall_s <= limit_s), 1)


def medians(costs: Sequence[Cost]) -> Cost:
    """Return the medians of several runs, each quantity by itself."""
    others = [cost.others_s for cost in costs if cost.others_s is not None]
    return Cost(
        wall_s=statistics.median(cost.wall_s for cost in costs),
        cpu_s=statistics.median(cost.cpu_s for cost in costs),
        peak_bytes=int(statistics.median(cost.peak_bytes for cost in costs)),
        others_s=statistics.median(others) if len(others) == len(costs) else None,
    )


def measure_reference(prepared: PreparedTask, terms: Terms) -> Cost | None:
    """Return the cost of MinMax on a task; None without a model."""
    try:
        environment = prepare(REFERENCE.peer)
    except EnvironmentFailedError:
        return None
    with tempfile.TemporaryDirectory(dir=work_root()) as work:
        made = make(REFERENCE, prepared, environment, terms, Path(work))
    return made.cost if made.outcome == "made" else None

"""Times every model of a task that keeps the metric, and the float model, turn by turn.

Speeds that were taken an hour apart compare badly on a shared machine; here each model's inference
is followed by the next one's, so that noise hits all alike. A process of its own for each task:

    python -m benchmarks.packager.race --task NAME --model TITLE=PATH … --timed-s S --output FILE
"""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from benchmarks.packager.measured_child import run_measured
from benchmarks.packager.timing import TIMED_SAMPLES, medians_in_turn_ms
from benchmarks.tasks import load_task
from benchmarks.tasks.float_model import open_float_model
from benchmarks.tasks.places import ROOT
from benchmarks.tasks.task import Task
from edgepack.decoding import decode_json

TIMED_S = 20.0
"""Of timing, for all models of a task together."""

_LIMIT_S = 600.0
_MEMORY_LIMIT_BYTES = 8 * 10**9


def race(
    task: Task, models: Mapping[str, Path], work: Path, *, timed_s: float
) -> dict[str, float] | None:
    """Return medians of an inference on a single thread, milliseconds, by the models' names.

    Args:
        task: The task with the calibration samples to feed.
        models: The models by name.
        work: Folder for the answer.
        timed_s: Duration, seconds; every model has 15 turns in any case.

    Returns:
        The medians; None for a model that does not run in this process.
    """
    output, log = work / "race.json", work / "race.txt"
    entrants: list[str | Path] = []
    for name, path in models.items():
        entrants += ["--model", f"{name}={path}"]
    ran = run_measured(
        [
            *(sys.executable, "-m", "benchmarks.packager.race", "--task", task.name),
            *(*entrants, "--timed-s", str(timed_s), "--output", output),
        ],
        folder=ROOT,
        log=log,
        time_limit_s=_LIMIT_S,
        memory_limit_bytes=_MEMORY_LIMIT_BYTES,
    )
    if ran.exit_code != 0:
        return None
    return decode_json(output.read_bytes(), dict[str, float])


def main() -> None:
    """Race the models of the command line and write the medians."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--task", required=True)
    parser.add_argument("--model", action="append", required=True)
    parser.add_argument("--timed-s", type=float, required=True)
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()
    named = [entry.partition("=") for entry in given.model]
    runs = {name: open_float_model(Path(path)) for name, _, path in named}
    samples = load_task(given.task).calibration()[:TIMED_SAMPLES]
    medians = medians_in_turn_ms(runs, samples, timed_s=given.timed_s)
    given.output.write_bytes(msgspec.json.encode(medians))


if __name__ == "__main__":
    main()

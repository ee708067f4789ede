"""Prints the metrics of the float models, or writes the inputs of `edgepack build` for a task."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.tasks import NAMES, UNSEEN, load_task
from benchmarks.tasks.export import build_command, export_task
from benchmarks.tasks.float_model import open_float_model
from edgepack.errors import EdgepackError

_ALL = (*NAMES, *UNSEEN)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tasks", description=__doc__)
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=f"of {', '.join(_ALL)}")
    parser.add_argument(
        "--export",
        type=Path,
        metavar="FOLDER",
        help="write FOLDER/TASK/calibration and print the build command, e.g. --export .bench",
    )
    given = parser.parse_args(arguments)
    if unknown := sorted(set(given.tasks) - set(_ALL)):
        parser.error(f"no task {unknown[0]!r}; there are {', '.join(_ALL)}")
    try:
        for name in given.tasks or NAMES:
            task = load_task(name)
            if given.export:
                print(build_command(task, export_task(task, given.export / name)), flush=True)
            else:
                value = task.score(open_float_model(task.model), "evaluation")
                print(f"{name:8}  {value:.4f}  {task.metric}", flush=True)
    except EdgepackError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Builds small models of many kinds of tasks and compares reported with true accuracy.

A cell that was measured before is not measured again, so an interrupted run resumes.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from benchmarks.packager.contestants import OWN
from benchmarks.packager.environments import prepare
from benchmarks.task_kinds.cells import PROFILES, Bench, Cell, Store
from benchmarks.task_kinds.kinds import KINDS
from benchmarks.task_kinds.table import describe, page, terminal
from benchmarks.tasks.places import CACHE
from edgepack.decoding import decode_json
from edgepack.durable import write_file

_STORE = CACHE / "results" / "task_kinds"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.task_kinds",
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--kinds", type=_names(KINDS), default=tuple(KINDS), metavar="A,B")
    parser.add_argument("--profiles", type=_names(PROFILES), default=PROFILES, metavar="A,B")
    parser.add_argument("--declared", choices=("no", "yes", "both"), default="both")
    parser.add_argument("--time-limit-s", type=float, default=180, help="for one build")
    parser.add_argument(
        "--any-version", action="store_true", help="keep cells that other sources were measured by"
    )
    parser.add_argument("--show", action="store_true", help="measure nothing: only show the table")
    parser.add_argument(
        "--output",
        type=Path,
        help="folder for the page and tasks.json, with before.json to compare with if wanted",
    )
    given = parser.parse_args(arguments)
    store = Store(_STORE)
    version = prepare(OWN).version
    declared = {"no": (False,), "yes": (True,), "both": (False, True)}[given.declared]
    for name in given.kinds:
        wanted = [(profile, flag) for profile in given.profiles for flag in declared]
        wanted = [key for key in wanted if not _is_measured(store, name, *key, given, version)]
        if not wanted or given.show:
            continue
        with tempfile.TemporaryDirectory(prefix="edgepack-bench-") as folder:
            bench = Bench(
                KINDS[name],
                Path(folder) / "task",
                time_limit_s=given.time_limit_s,
                version=version,
            )
            for profile, flag in wanted:
                measured = bench.measure(profile, is_declared=flag)
                store.keep(measured)
                _print(measured)
    cells = [
        cell
        for name in given.kinds
        for profile in given.profiles
        for flag in declared
        if (cell := store.read(name, profile, is_declared=flag)) is not None
    ]
    earlier = given.output / "before.json" if given.output is not None else None
    before: list[Cell] = []
    if earlier is not None and earlier.exists():
        before = decode_json(earlier.read_bytes(), list[Cell])
    print(terminal(cells, before))
    if given.output is not None:
        given.output.mkdir(parents=True, exist_ok=True)
        numbers = msgspec.json.format(msgspec.json.encode(cells), indent=1)
        write_file(given.output / "tasks.json", numbers + b"\n")
        write_file(given.output / "README.md", page(cells, before).encode())
    return 0


def _is_measured(
    store: Store,
    name: str,
    profile: str,
    is_declared: bool,
    given: argparse.Namespace,
    version: str,
) -> bool:
    cell = store.read(name, profile, is_declared=is_declared)
    return cell is not None and (given.any_version or cell.version == version)


def _print(cell: Cell) -> None:
    declared = "declared" if cell.is_declared else "plain"
    text = f"{cell.kind:24} {cell.profile:14} {declared:9} {describe(cell):18} {cell.metric}"
    print(f"{text} {cell.build_s:.1f} s", file=sys.stderr, flush=True)


def _names(known: Iterable[str]) -> Callable[[str], tuple[str, ...]]:
    """Return a reader of `a,b` that rejects unknown names."""

    def read(text: str) -> tuple[str, ...]:
        chosen = tuple(text.split(","))
        if unknown := sorted(set(chosen) - set(known)):
            raise argparse.ArgumentTypeError(f"no {unknown[0]!r}; there are {', '.join(known)}")
        return chosen

    return read


if __name__ == "__main__":
    sys.exit(main())

"""Comparison of packagers on real models, side by side; prints tables, writes JSON.

Earlier measurements are reused, so an interrupted run continues at its position.
"""

import argparse
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from benchmarks.packager.calibration import measure_calibrator
from benchmarks.packager.contestants import (
    CALIBRATION,
    CALIBRATORS,
    CONTESTANTS,
    TARGETS,
    Contestant,
)
from benchmarks.packager.document import document
from benchmarks.packager.host import Host, read_host
from benchmarks.packager.making import PreparedTask, Terms, prepare_task
from benchmarks.packager.measure import kept_on_cpu, measure, measure_float, race_kept
from benchmarks.packager.pages import PAGES, read_pages, write_pages
from benchmarks.packager.records import FLOAT, Record, Results, Store, encode_results
from benchmarks.packager.table import speed
from benchmarks.tasks import NAMES, UNSEEN, load_task
from benchmarks.tasks.export import CALIBRATION_COUNT, export_task
from benchmarks.tasks.places import CACHE
from edgepack.durable import write_file
from edgepack.errors import EdgepackError

_RESULTS = CACHE / "results"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    given = _parse(arguments)
    if given.render:
        write_pages(read_pages())
        return 0
    signal.signal(signal.SIGTERM, _stop)
    host = read_host()
    terms = Terms(
        part="development" if given.quick else "evaluation",
        quick=given.quick,
        time_limit_s=given.time_limit_s,
        memory_limit_bytes=int(given.memory_limit_gb * 1e9),
        cpu=host.cpu,
        store=Store(_RESULTS / "packager"),
    )
    contestants = choose(CONTESTANTS, given, host)
    calibrators = choose(CALIBRATORS, given, host)
    try:
        take = _read_all if given.measured_before else _measure_all
        results = take(given.tasks, contestants, calibrators, terms, host)
    except EdgepackError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    _RESULTS.mkdir(parents=True, exist_ok=True)
    write_file(_RESULTS / "packager.json", encode_results(results))
    print(document(results))
    if given.write_docs:
        others = [other for other in read_pages() if other.host.kind != host.kind]
        write_pages([results, *others])
    return 0


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    """End through every `finally`, so that no child process is left."""
    sys.exit(128 + number)


def choose(
    entries: Sequence[Contestant], given: argparse.Namespace, host: Host
) -> list[Contestant]:
    """Choose the entries that the command line requests and this machine can measure."""
    return [
        entry
        for entry in entries
        if (not entry.needs or entry.needs in host.flags)
        and entry.peer in given.peers
        and entry.target in given.targets
        and entry.setting in given.settings
    ]


def _measure_all(
    tasks: Sequence[str],
    contestants: Sequence[Contestant],
    calibrators: Sequence[Contestant],
    terms: Terms,
    host: Host,
) -> Results:
    floats, records, calibrations, races = [], [], [], []
    for name in tasks:
        task = load_task(name)
        prepared = prepare_task(task, _calibration_folder(name))
        floats.append(measure_float(prepared, terms))
        records += [_measured_aloud(measure, entry, prepared, terms) for entry in contestants]
        calibrations += [
            _measured_aloud(measure_calibrator, entry, prepared, terms) for entry in calibrators
        ]
        race = race_kept(prepared, floats[-1], records, terms)
        if race is not None:
            races.append(race)
    return Results(
        host=host,
        part=terms.part,
        calibration_count=CALIBRATION_COUNT,
        float_records=tuple(floats),
        records=tuple(records),
        calibrations=tuple(calibrations),
        races=tuple(races),
    )


def _measured_aloud(
    take: Callable[[Contestant, PreparedTask, Terms], Record],
    contestant: Contestant,
    prepared: PreparedTask,
    terms: Terms,
) -> Record:
    """Measure, with a message on stderr."""
    name = prepared.task.name
    print(f"{name}: {contestant.title} …", end=" ", file=sys.stderr, flush=True)
    record = take(contestant, prepared, terms)
    print(_told(record), file=sys.stderr, flush=True)
    return record


def _read_all(
    tasks: Sequence[str],
    contestants: Sequence[Contestant],
    calibrators: Sequence[Contestant],
    terms: Terms,
    host: Host,
) -> Results:
    editions = {name: load_task(name).edition for name in tasks}
    newest = terms.store.newest(terms.part, terms.cpu, editions)
    floats = [newest[FLOAT, "-", name] for name in tasks if (FLOAT, "-", name) in newest]

    def of(entries: Sequence[Contestant]) -> tuple[Record, ...]:
        return tuple(
            newest[entry.peer, entry.setting, record.subject.task]
            for record in floats
            for entry in entries
            if (entry.peer, entry.setting, record.subject.task) in newest
        )

    records = of(contestants)
    races = [
        terms.store.read_race(record.subject.task, kept_on_cpu(record, records))
        for record in floats
    ]
    return Results(
        host=host,
        part=terms.part,
        calibration_count=CALIBRATION_COUNT,
        float_records=tuple(floats),
        records=records,
        calibrations=of(calibrators),
        races=tuple(race for race in races if race is not None),
    )


def _calibration_folder(name: str) -> Path:
    folder = CACHE / name / "calibration"
    return folder if folder.is_dir() else export_task(load_task(name), CACHE / name)


def _told(record: Record) -> str:
    if record.outcome == "made":
        return f"made in {record.wall_s or 0:.1f} s"
    if record.verdict is None:
        return f"{record.outcome}: {record.because}" if record.because else record.outcome
    return f"{record.verdict.metric:.3f}, {speed(record):.2f}x, made in {record.wall_s or 0:.1f} s"


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    peers = tuple(dict.fromkeys(entry.peer for entry in CONTESTANTS))
    settings = tuple(dict.fromkeys(entry.setting for entry in (*CONTESTANTS, *CALIBRATORS)))
    targets = (*TARGETS, CALIBRATION)
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.packager",
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--tasks", type=_list_of((*NAMES, *UNSEEN)), default=NAMES, metavar="A,B")
    parser.add_argument("--peers", type=_list_of(peers), default=peers, metavar="A,B")
    parser.add_argument("--targets", type=_list_of(targets), default=targets, metavar="A,B")
    parser.add_argument("--settings", type=_list_of(settings), default=settings, metavar="A,B")
    parser.add_argument("--quick", action="store_true", help="fewer samples, shorter timing")
    parser.add_argument("--time-limit-s", type=float, default=600, help="for one model")
    parser.add_argument("--memory-limit-gb", type=float, default=8, help="for one model")
    parser.add_argument(
        "--measured-before", action="store_true", help="only show what was measured before"
    )
    parser.add_argument(
        "--write-docs",
        action="store_true",
        help=f"write the pages of this kind of CPU in {PAGES.name}, and README.md's tables",
    )
    parser.add_argument(
        "--render",
        action="store_true",
        help="measure nothing: only the pages again, from their JSON",
    )
    return parser.parse_args(arguments)


def _list_of(known: Iterable[str]) -> Callable[[str], tuple[str, ...]]:
    """Read `a,b` and reject unknown names."""
    names = tuple(known)

    def read(text: str) -> tuple[str, ...]:
        chosen = tuple(text.split(","))
        if unknown := sorted(set(chosen) - set(names)):
            raise argparse.ArgumentTypeError(f"no {unknown[0]!r}; there are {', '.join(names)}")
        return chosen

    return read


if __name__ == "__main__":
    sys.exit(main())

"""Measures fleets of simulated devices on a real mosquitto: `python -m benchmarks.fleet`.

Processor time counts here, since other programs may use the machine, too. The controller is asked
nothing while the first rollout of each run is measured.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from benchmarks.fleet.alone import Alone, measure_alone
from benchmarks.fleet.measure import Run, measure
from benchmarks.packager.host import Host, read_host

PAGE = """\
# The fleet, measured

What a rollout costs its controller. Made by `make bench-fleet`; [the numbers](fleet.json) as JSON.

{cpu}, {cores} cores, a load of {load:.0f} at the end. Simulated devices speak the real protocol
with a real mosquitto; controller, broker and devices share the cores, so processor time counts.
Devices give way to the two others (nice 10), for they have processors of their own elsewhere. In a
minute at rest each device sends one report and one latency window.

{table}

`ms a device` is the processor time of the controller in a rollout of three waves, by device; nobody
asks it anything meanwhile. `while watched` is the same while somebody looks at everything twice a
second; the times of answers are from then. The telemetry comes from one client as fast as the
broker takes it.

## Answers at rest

Between the two rollouts, one after the other: what 95 % of them did not exceed, ms, and the
processor time of one, ms.

{at_rest}

## Engine and store alone

No broker and no processes: the rules, the transactions and an SQLite. A first wave of 10,000
devices is offered the release and reports four times.

{alone}
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet", description=__doc__)
    parser.add_argument("--devices", default="100,500,1000", help="numbers, separated by commas")
    parser.add_argument("--alone", default="", help="numbers for engine and store without a broker")
    parser.add_argument("--output", type=Path, help="file for the JSON")
    parser.add_argument("--page", type=Path, help="file for a page with the tables")
    given, serve = parser.parse_known_args(arguments)
    runs: list[Run] = []
    alone: list[Alone] = []
    for devices in map(int, filter(None, given.devices.split(","))):
        with tempfile.TemporaryDirectory(prefix="edgepack-bench-") as folder:
            runs.append(measure(devices, Path(folder), tuple(serve)))
        print(table(runs), flush=True)
        _write(given, runs, alone)
    for devices in map(int, filter(None, given.alone.split(","))):
        with tempfile.TemporaryDirectory(prefix="edgepack-bench-") as folder:
            alone.append(measure_alone(devices, Path(folder)))
        print(table_alone(alone), flush=True)
        _write(given, runs, alone)
    return 0


def _write(given: argparse.Namespace, runs: Sequence[Run], alone: Sequence[Alone]) -> None:
    """Write the measurements so far: a run takes long."""
    host = read_host()
    measured = {"host": host, "load": os.getloadavg()[1], "runs": runs, "alone": alone}
    if given.output is not None:
        given.output.parent.mkdir(parents=True, exist_ok=True)
        given.output.write_bytes(msgspec.json.format(msgspec.json.encode(measured)) + b"\n")
    if given.page is not None:
        given.page.write_text(page(host, runs, alone))


def table(runs: Sequence[Run]) -> str:
    """Return a Markdown table, a column for each number of devices."""
    rows: dict[str, list[str]] = {
        "devices": [f"{run.devices:,}" for run in runs],
        "---": ["---:" for _ in runs],
        "rollout, s": [f"{run.rollout_s:.1f}" for run in runs],
        "controller CPU, ms a device": [f"{run.cpu_ms_a_device:.2f}" for run in runs],
        "the same, while watched": [f"{run.watched_cpu_ms_a_device:.2f}" for run in runs],
        "idle CPU, s a minute": [f"{run.idle_cpu_s_a_minute:.2f}" for run in runs],
        "resident memory (most), MB": [
            f"{run.resident_bytes / 1e6:.0f} ({run.peak_bytes / 1e6:.0f})" for run in runs
        ],
        "events lost": [f"{run.lost_events:,}" for run in runs],
        "telemetry messages a CPU second": [f"{run.telemetry.per_cpu_s:,.0f}" for run in runs],
        "telemetry lost of 20,000 at once": [f"{run.telemetry.lost:,}" for run in runs],
    }
    for path in runs[-1].p95_ms:
        rows[f"GET {path}, p95 ms"] = [f"{run.p95_ms.get(path, 0):.0f}" for run in runs]
    return _markdown(rows)


def table_at_rest(runs: Sequence[Run]) -> str:
    """Return the cost of answers without a rollout: the 95th percentile, and CPU time."""
    rows = {
        "devices": [f"{run.devices:,}" for run in runs],
        "---": ["---:" for _ in runs],
    }
    for path in runs[-1].at_rest:
        told = [run.at_rest[path] for run in runs]
        rows[f"GET {path}"] = [f"{one.p95_ms:.0f} ({one.cpu_ms:.1f})" for one in told]
    return _markdown(rows)


def table_alone(runs: Sequence[Alone]) -> str:
    """Return the same table for engine and store without a broker."""
    rows: dict[str, list[str]] = {
        "devices": [f"{run.devices:,}" for run in runs],
        "---": ["---:" for _ in runs],
        "start a rollout to all, CPU s": [f"{run.start_s:.2f}" for run in runs],
        "offer it to a device, CPU ms": [f"{run.offer_ms:.2f}" for run in runs],
        "take down a report, CPU ms": [f"{run.report_ms:.2f}" for run in runs],
        "look whether there is something to do, CPU ms": [f"{run.look_ms:.1f}" for run in runs],
        "database, MB": [f"{run.database_bytes / 1e6:,.0f}" for run in runs],
        "memory at most, MB": [f"{run.peak_bytes / 1e6:,.0f}" for run in runs],
    }
    return _markdown(rows)


def page(host: Host, runs: Sequence[Run], alone: Sequence[Alone]) -> str:
    """Return the page of the documents, as Markdown."""
    return PAGE.format(
        cpu=host.cpu,
        cores=host.cores,
        load=os.getloadavg()[1],
        table=table(runs) if runs else "",
        at_rest=table_at_rest(runs) if runs else "",
        alone=table_alone(alone) if alone else "",
    )


def _markdown(rows: Mapping[str, Sequence[str]]) -> str:
    return "\n".join(f"| {name} | {' | '.join(cells)} |" for name, cells in rows.items())


if __name__ == "__main__":
    sys.exit(main())

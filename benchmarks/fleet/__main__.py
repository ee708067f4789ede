"""Measures fleets of simulated devices on a real mosquitto: `python -m benchmarks.fleet`.

Processor time counts here, for others may use the machine, too. The controller is asked nothing
while the first rollout of each run is measured.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.fleet.measure import Run, measure
from benchmarks.packager.host import read_host


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet", description=__doc__)
    parser.add_argument("--devices", default="100,500,1000", help="numbers, separated by commas")
    parser.add_argument("--output", type=Path, help="file for the JSON")
    given, serve = parser.parse_known_args(arguments)
    runs = []
    for devices in map(int, given.devices.split(",")):
        with tempfile.TemporaryDirectory(prefix="edgepack-bench-") as folder:
            runs.append(measure(devices, Path(folder), tuple(serve)))
        print(table(runs), flush=True)
    document = msgspec.json.format(msgspec.json.encode({"host": read_host(), "runs": runs}))
    if given.output is not None:
        given.output.parent.mkdir(parents=True, exist_ok=True)
        given.output.write_bytes(document + b"\n")
    return 0


def table(runs: Sequence[Run]) -> str:
    """A Markdown table, a column for each number of devices."""
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
    }
    for path in runs[-1].p95_ms:
        rows[f"GET {path}, p95 ms"] = [f"{run.p95_ms.get(path, 0):.0f}" for run in runs]
    return "\n".join(f"| {name} | {' | '.join(cells)} |" for name, cells in rows.items())


if __name__ == "__main__":
    sys.exit(main())

"""Measures how bundles travel, on a real mosquitto: `python -m benchmarks.transfer`.

A real agent next to a plain paho loop and nginx, then fleets of simulated devices, which check
every chunk and keep none. Everything runs on this machine and shares its cores.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from benchmarks.packager.host import Host, read_host
from benchmarks.transfer.fan_out import FanOut, fan_out
from benchmarks.transfer.one_device import OneDevice, one_device
from benchmarks.transfer.slow_device import SlowDevice, slow_device

MB = 1e6
PAGE = """\
# Transfer, measured

How fast a bundle gets to a device, and what it costs to bring it to many. Made by
`make bench-transfer`; [the numbers](transfer.json) as JSON.

{cpu}, {cores} cores, a load of {load:.0f} at the end. A real mosquitto and a real controller; all
on this machine, whose cores they share.

## One device

A real agent, beside a paho publisher and subscriber with messages of 64 KiB, and one GET from
nginx: {turns} turns, each with all three, the middle of each. The agent checks each chunk, writes
it to its place, and verifies every file.

{one}

`of the paho loop` is the middle of the ratios within a turn. Processor time is counted from the
rollout's start until every file is verified.

## Many devices

A bundle of {fan_mb:.0f} MB. Simulated devices check every chunk and keep none; what a device loses,
it loses for itself.

{many}

## One slow device

{slow}
"""


class Measured(msgspec.Struct, kw_only=True):
    """Measurements so far."""

    host: Host
    load: float = 0.0
    turns: int
    one: list[OneDevice] = []
    many: list[FanOut] = []
    slow: list[SlowDevice] = []


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.transfer", description=__doc__)
    parser.add_argument("--one", default="20,100", help="megabytes, separated by commas")
    parser.add_argument("--turns", default=5, type=int, help="of one device")
    parser.add_argument("--devices", default="1,10,50,200,1000", help="numbers, without loss")
    parser.add_argument("--lossy", default="1,10,50,200,1000", help="numbers, with 5 %% loss")
    parser.add_argument("--slow", default="49", help="numbers of devices beside a slow one")
    parser.add_argument("--megabytes", default=20, type=int, help="of the bundle for many devices")
    parser.add_argument("--output", type=Path, help="file for the JSON")
    parser.add_argument("--page", type=Path, help="file for a page with the tables")
    given = parser.parse_args(arguments)
    measured = Measured(host=read_host(), turns=given.turns)
    size_bytes = given.megabytes * 10**6
    for megabytes in _numbers(given.one):
        measured.one.append(one_device(megabytes * 10**6, given.turns))
        _write(given, measured)
    for loss, numbers in ((0.0, given.devices), (0.05, given.lossy)):
        for devices in _numbers(numbers):
            with tempfile.TemporaryDirectory(prefix="edgepack-bench-") as folder:
                measured.many.append(fan_out(devices, size_bytes, Path(folder), loss))
            _write(given, measured)
    for devices in _numbers(given.slow):
        measured.slow.append(slow_device(devices, size_bytes))
        _write(given, measured)
    return 0


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]


def _write(given: argparse.Namespace, measured: Measured) -> None:
    """Print and write the measurements so far: a run takes long."""
    measured.load = os.getloadavg()[1]
    print(page(measured, given.megabytes), flush=True)
    if given.output is not None:
        given.output.parent.mkdir(parents=True, exist_ok=True)
        given.output.write_bytes(msgspec.json.format(msgspec.json.encode(measured)) + b"\n")
    if given.page is not None:
        given.page.write_text(page(measured, given.megabytes))


def page(measured: Measured, megabytes: float) -> str:
    """Return the page of the documents, as Markdown."""
    return PAGE.format(
        cpu=measured.host.cpu,
        cores=measured.host.cores,
        load=measured.load,
        turns=measured.turns,
        one=_one(measured.one),
        fan_mb=megabytes,
        many=_many(measured.many),
        slow=_slow(measured.slow),
    )


def _one(runs: Sequence[OneDevice]) -> str:
    got = [run.fetched for run in runs]
    return _markdown(
        {
            "bundle, MB": [f"{one.size_bytes / MB:.0f}" for one in got],
            "---": ["---:" for _ in got],
            "agent, first chunk to last, MB/s": [f"{one.bytes_per_s / MB:.0f}" for one in got],
            "paho loop, MB/s": [f"{run.paho_bytes_per_s / MB:.0f}" for run in runs],
            "agent, of the paho loop": [f"{run.share_of_paho:.2f}" for run in runs],
            "nginx, MB/s": [f"{run.nginx_bytes_per_s / MB:.0f}" for run in runs],
            "offered until verified, s": [f"{one.verified_s:.2f}" for one in got],
            "agent, CPU s": [f"{one.agent.cpu_s:.2f}" for one in got],
            "agent, memory at most, MB": [f"{one.agent.peak_bytes / MB:.0f}" for one in got],
            "controller, CPU s": [f"{one.controller.cpu_s:.2f}" for one in got],
            "controller, memory at most, MB": [
                f"{one.controller.peak_bytes / MB:.0f}" for one in got
            ],
            "mosquitto, memory at most, MB": [f"{one.broker.peak_bytes / MB:.0f}" for one in got],
        }
    )


def _many(runs: Sequence[FanOut]) -> str:
    return _markdown(
        {
            "devices": [f"{run.devices:,}" for run in runs],
            "---": ["---:" for _ in runs],
            "chunks lost": [f"{run.loss:.0%}" for run in runs],
            "sent by the depot, bundles": [f"{run.sent_files:.2f}" for run in runs],
            "the last device has it, s": [f"{run.last_s:.1f}" for run in runs],
            "controller, CPU s": [f"{run.controller.cpu_s:.1f}" for run in runs],
            "controller, memory at most, MB": [
                f"{run.controller.peak_bytes / MB:.0f}" for run in runs
            ],
            "mosquitto, memory at most, MB": [f"{run.broker.peak_bytes / MB:.0f}" for run in runs],
        }
    )


def _slow(runs: Sequence[SlowDevice]) -> str:
    return "\n".join(
        f"{run.devices} devices have the bundle after {run.alone_s:.1f} s, and after "
        f"{run.beside_s:.1f} s ({run.beside_s / run.alone_s:.2f} times) beside one that takes a "
        f"tenth of what they take."
        for run in runs
    )


def _markdown(rows: Mapping[str, Sequence[str]]) -> str:
    return "\n".join(f"| {name} | {' | '.join(cells)} |" for name, cells in rows.items())


if __name__ == "__main__":
    sys.exit(main())

"""Measures the watch: `python -m benchmarks.watch`. Prints tables, and writes JSON and a page."""

import argparse
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import msgspec

from benchmarks.watch.cost import Cost, measure_cost
from benchmarks.watch.day import NOISES, Day, simulate_day
from benchmarks.watch.faults import Action, measure_faults
from edgepack.decoding import decode_json


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """All results; a part that was never measured is empty.

    Attributes:
        loads: Load average of the machine after each part, by part.
        cores: Its cores.
        actions: Actions after faults.
        days: Simulated days.
        cost: Cost on a device.
    """

    loads: dict[str, float] = {}
    cores: int = 0
    actions: list[Action] = []
    days: list[Day] = []
    cost: Cost | None = None


def write_page(found: Results) -> str:
    """Return the page."""
    loads = ", ".join(f"{part} {load:.0f}" for part, load in found.loads.items())
    lines = [
        "# The watch",
        "",
        "Written by `make bench-watch` ([`watch.json`](watch.json)). See [the watch]"
        "(../../explanation/watch.md) for the rules.",
        "",
        f"The machine has {found.cores} cores. Other work may share the cores; load average by "
        f"part: {loads}. Times and cost on a machine with a higher load are longer.",
        "",
        "## From a fault to the action",
        "",
        "Real builds, agents, applications, fleet and broker; the default settings of the watch. "
        "The time ends when the device has acted and saved the reason.",
        "",
        "| fault | seconds | reason (begin) |",
        "| --- | --- | --- |",
    ]
    for one in found.actions:
        after = "–" if one.after_s is None else f"{one.after_s:.0f}"
        lines.append(f"| {one.fault} | {after} | {one.because[:160].replace('|', '/')} |")
    if not found.actions:
        lines.append("| not measured yet: `make bench-watch` | – | – |")
    lines += [
        "",
        "## False actions",
        "",
        "Clock, inferences and probes are simulated; updater, table and drift windows are the "
        "agent's own. Latencies are lognormal with a Pareto tail, 2 inferences a second. A move "
        "changes the serving variant or release. An action without a move probes the variants and "
        "finds nothing better.",
        "",
        "| noise | hours | inferences | moves | actions without a move | reports |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for day in found.days:
        reports = ", ".join(f"{name} {count}" for name, count in day.reports.items()) or "none"
        lines.append(
            f"| {day.title} | {day.hours:g} | {day.inferences} | {day.moves} "
            f"| {day.acts - min(day.acts, day.moves)} | {reports} |"
        )
    if not found.days:
        lines.append("| not measured yet: `make bench-watch` | – | – | – | – | – |")
    return "\n".join((*lines, *_cost_lines(found.cost))) + "\n"


def _cost_lines(cost: Cost | None) -> list[str]:
    if cost is None:
        return []
    rows = (
        ("counts, running mark and sketches of an inference", "1 us", f"{cost.counting_us:.2f} us"),
        ("`Model.run` beside the session's `run`", "–", f"{cost.inference_us:.2f} us"),
        ("processor time of the agent", "0.1 %", f"{cost.agent_share:.2%}"),
        ("written to the disk in an hour", "1 MB", _number(cost.written_mb_h, " MB")),
        ("flushes in an hour", "60", _number(cost.flushes_h)),
        ("resident memory of the agent (RSS)", "40 MB", f"{cost.resident_mb:.1f} MB"),
        ("its proportional share (PSS)", "–", f"{cost.proportional_mb:.1f} MB"),
        ("private memory", "–", f"{cost.private_mb:.1f} MB"),
    )
    return [
        "",
        "## Cost",
        "",
        f"A real agent and an application with 10 inferences a second, for {cost.seconds:.0f} s. "
        "`tests/integration/test_agent_traffic.py` measures the bytes that an idle device sends in "
        "a month.",
        "",
        "| | goal | measured |",
        "| --- | --- | --- |",
        *(f"| {title} | {goal} | {value} |" for title, goal, value in rows),
    ]


def _number(value: float | None, unit: str = "") -> str:
    return "not measured yet" if value is None else f"{value:.2f}{unit}"


def main() -> None:
    """Measure all, print the tables, and write the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.watch", description=__doc__)
    parser.add_argument("--hours", type=float, default=24.0, help="of each simulated day")
    parser.add_argument("--seconds", type=float, default=600.0, help="of the measured cost")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--output", type=Path, help="folder of watch.json and README.md")
    parser.add_argument("--parts", default="faults,cost,days", help="parts to measure, by comma")
    given = parser.parse_args()
    output: Path | None = given.output
    found = Results(cores=os.cpu_count() or 1)
    if output and (output / "watch.json").exists():
        found = decode_json((output / "watch.json").read_bytes(), Results)
    for part in given.parts.split(","):
        if part == "faults":
            found = msgspec.structs.replace(found, actions=measure_faults())
        elif part == "cost":
            found = msgspec.structs.replace(found, cost=measure_cost(given.seconds))
        else:
            with ProcessPoolExecutor(given.workers) as pool:
                asked = [pool.submit(simulate_day, noise, 1, given.hours) for noise in NOISES]
                found = msgspec.structs.replace(found, days=[one.result() for one in asked])
        loads = found.loads | {part: os.getloadavg()[0]}
        found = msgspec.structs.replace(found, loads=loads)
        page = write_page(found)
        if output:
            output.mkdir(parents=True, exist_ok=True)
            content = msgspec.json.format(msgspec.json.encode(found), indent=1)
            (output / "watch.json").write_bytes(content + b"\n")
            (output / "README.md").write_text(page)
    print(page)


if __name__ == "__main__":
    main()

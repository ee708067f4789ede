"""The watch as two tables: a row for each symptom, and the states of the watch.

Pure. `update.watching` measures and acts; only these tables decide which measurement is sufficient
evidence, and for which action.

    python -m edgepack.agent.watch.table        # both tables, for the docs
"""

from collections.abc import Callable, Iterator
from typing import Literal

import msgspec

from edgepack.agent.watch import evidence
from edgepack.agent.watch.observed import Observed, Verdict

Symptom = Literal[
    "process",
    "hang",
    "silence",
    "failed",
    "not_finite",
    "inputs",
    "golden",
    "basis",
    "damage",
    "disagreement",
    "slow",
    "harm",
    "heat",
    "healed",
]

WatchState = Literal["WATCHING", "HEALING", "DEGRADED"]

Step = Literal["variant", "intact", "previous", "repair", "report"]
"""The next right variant of the same release; a right variant with intact files; the previous
release; a fetch of damaged files; nothing but a report."""

LEAVE: tuple[Step, ...] = ("variant", "previous", "report")
WORDS: dict[Step, str] = {
    "variant": "next right variant",
    "intact": "intact variant at once",
    "previous": "previous release",
    "repair": "previous release until the file is fetched again",
    "report": "report",
}


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """Row of a symptom.

    Attributes:
        title: The symptom, in words.
        measurement: Measured value.
        evidence: Sufficient evidence after the commit, with its error rate.
        in_soak: Evidence that ends a soak; "" where the symptom ends none.
        steps: Actions after the commit, in order.
        shared: Cause of a symptom that two releases show, in words: the wanted release then serves
            again, and no release is left for the symptom. "" where no release is left.
        restart: Memory of a restarted agent.
        judge: Returns the verdict on measurements.
    """

    title: str
    measurement: str
    evidence: str
    in_soak: str = ""
    steps: tuple[Step, ...] = LEAVE
    shared: str = ""
    restart: str = "counts begin anew"
    judge: Callable[[Observed], Verdict]


ROWS: dict[Symptom, Row] = {
    "process": Row(
        title="processes that hold the release die",
        measurement="locked files of the processes, for the last 10 minutes",
        evidence="3 deaths, and more than twice as many as in as much time before",
        in_soak="the same, or a process that cannot open the release",
        shared="the application",
        judge=evidence.judge_processes,
    ),
    "hang": Row(
        title="a process that holds the release hangs",
        measurement="heartbeats each second, and the start of the running inference",
        evidence="no heartbeat, or an inference, for 30 s times the load of each core, if above 1; "
        "or 20 times the latency of the probe",
        in_soak="the same",
        shared="the application or the provider",
        restart="heartbeats are files",
        judge=evidence.judge_hangs,
    ),
    "silence": Row(
        title="no inference of a release that was busy",
        measurement="inferences since the switch, while a process holds the model",
        evidence="none: an idle camera is silent, too",
        in_soak="twice the longest of 5 intervals before the switch",
        steps=("report",),
        judge=evidence.judge_silence,
    ),
    "failed": Row(
        title="inferences fail",
        measurement="failed inferences of the last 10 minutes, or of the last 100",
        evidence="beyond doubt more than 1 %, for 15 s; a wrong action in 150 years at the limit",
        in_soak="more than 1 %",
        shared="the application or the provider",
        judge=evidence.judge_failed,
    ),
    "not_finite": Row(
        title="outputs are NaN or infinite",
        measurement=(
            "the same, of outputs that are finite in the golden samples, while all inputs are "
            "finite"
        ),
        evidence="beyond doubt more than 1 %, for 15 s; a wrong action in 150 years at the limit",
        in_soak="more than 1 %",
        shared="the inputs or the provider",
        judge=evidence.judge_not_finite,
    ),
    "inputs": Row(
        title="inputs are NaN or infinite",
        measurement="inputs of inferences whose outputs are NaN or infinite",
        evidence="beyond doubt more than 1 %, for 15 s. Such outputs are then no release's fault",
        steps=("report",),
        judge=evidence.judge_inputs,
    ),
    "golden": Row(
        title="golden samples give other outputs",
        measurement=(
            "outputs of the serving provider against its own first outputs, each half hour: in "
            "the application's own session, and in a child of the agent"
        ),
        evidence=(
            "a difference, bit for bit, that is still there after the release was opened again; "
            "none by chance on a repeatable provider"
        ),
        shared="the hardware",
        restart="the first outputs are kept on the disk",
        judge=evidence.judge_golden,
    ),
    "basis": Row(
        title="provider, driver, runtime or firmware changed",
        measurement="facts of the device, each minute and at the start",
        evidence="a difference from the facts of the choice; measured without error",
        restart="compared at the start",
        judge=lambda seen: evidence.certain(seen.basis),
    ),
    "damage": Row(
        title="files are missing or changed",
        measurement="presence, type and size each 5 s, every byte once a day",
        evidence="a difference from the signed digest; measured without error",
        in_soak="a missing file",
        steps=("intact", "repair", "report"),
        restart="compared at the start",
        judge=lambda seen: evidence.certain(seen.damage),
    ),
    "disagreement": Row(
        title="the release disagrees with the previous release",
        measurement="spaced shadow inferences of a soak",
        evidence="none: shadow inferences end with the soak",
        in_soak="beyond doubt more than 2 %; wrong in .05 % at the limit",
        steps=("report",),
        judge=evidence.judge_disagreement,
    ),
    "slow": Row(
        title="inferences are slow",
        measurement="latency by intervals, against the release's own past hour on this device",
        evidence=(
            "10 times as slow in 3 intervals of 10 s, or twice in 5 of a minute; then the variant "
            "is probed again. If the probe is fast, the interval after it must be slow, too"
        ),
        in_soak=(
            "10 times as slow as the previous release in 3 intervals of 10 s, or twice in 5 of a "
            "minute"
        ),
        shared="the device or the inputs",
        restart="the past hour is kept on the disk",
        judge=evidence.judge_latency,
    ),
    "harm": Row(
        title="a drift costs right answers",
        measurement="confidence in windows of 10 minutes, against the device's own first day",
        evidence="a loss of 5 % in 3 windows in a row, or over a day; set for a false report in "
        "100 months",
        steps=("report",),
        restart="windows are kept on the disk",
        judge=lambda seen: evidence.certain(seen.harm),
    ),
    "heat": Row(
        title="the device slows down for heat",
        measurement="throttle counters, trip points and lowered frequencies of the kernel",
        evidence="one sign; measured without error. Slowness is then no release's fault, "
        "and for five more intervals",
        steps=("report",),
        judge=lambda seen: evidence.certain(seen.heat),
    ),
    "healed": Row(
        title="golden samples gave other outputs until the release was opened again",
        measurement="outputs in the application's own session against its first outputs",
        evidence=(
            "one case in the last hour: memory changed. The process opened the release again by "
            "itself"
        ),
        steps=("report",),
        restart="heartbeats are files",
        judge=evidence.judge_healed,
    ),
}


class StateRow(msgspec.Struct, frozen=True, kw_only=True):
    """Row of a state of the watch.

    Attributes:
        action: Action of the agent in this state; every action can run again.
        found: The state that follows a symptom whose row has an action to try.
        reported: The state that follows a symptom without an action to try.
        done: The state that follows the end of an action.
        calm: The state that follows a minute without symptoms, if the wanted variant serves.
        restart: The state in which a restarted agent continues.
    """

    action: str
    found: WatchState | None = None
    reported: WatchState | None = None
    done: WatchState | None = None
    calm: WatchState | None = None
    restart: WatchState


STATES: dict[WatchState, StateRow] = {
    "WATCHING": StateRow(
        action="judge the measurements of the wanted variant by every row",
        found="HEALING",
        reported="DEGRADED",
        restart="WATCHING",
    ),
    "HEALING": StateRow(
        action="probe the next variants and the previous release, switch the pointer",
        done="DEGRADED",
        restart="HEALING",
    ),
    "DEGRADED": StateRow(
        action="report what is wrong or not wanted, judge on",
        found="HEALING",
        reported="DEGRADED",
        calm="WATCHING",
        restart="DEGRADED",
    ),
}


def judge_all(seen: Observed) -> Iterator[tuple[Symptom, Verdict]]:
    """Yield the verdicts that are not `fine`, in the order of the rows."""
    for symptom, row in ROWS.items():
        verdict = row.judge(seen)
        if verdict.answer != "fine":
            yield symptom, verdict


def mermaid() -> str:
    """Return the states as a Mermaid state diagram."""
    lines = ["stateDiagram-v2", "    [*] --> WATCHING : commit"]
    for state, row in STATES.items():
        lines.append(f"    {state} : {state}<br/>{row.action}")
        arrows = {
            "symptom to act on": row.found,
            "symptom to report": row.reported,
            "moved, or nothing left": row.done,
            "calm": row.calm,
        }
        lines += [
            f"    {state} --> {after} : {words}"
            for words, after in arrows.items()
            if after not in (None, state)
        ]
    return "\n".join(lines)


def markdown() -> str:
    """Return the rows as a Markdown table."""
    lines = [
        "| symptom | measurement | sufficient evidence | evidence in a soak | actions "
        "| cause, if two releases show the symptom | restart |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for symptom, row in ROWS.items():
        steps = ", then ".join(WORDS[step] for step in row.steps)
        shared, in_soak = row.shared or "–", row.in_soak or "–"
        cells = (row.measurement, row.evidence, in_soak, steps, shared, row.restart)
        lines.append(f"| `{symptom}`: {row.title} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(f"{mermaid()}\n\n{markdown()}")

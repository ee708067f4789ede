"""Wording of times, sizes, states and names in a few words."""

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence

from edgepack.fleet.documents.audit import Number
from edgepack.fleet.documents.gates import BY_NAME, Finding, GateView
from edgepack.fleet.documents.rollouts import RolloutView
from edgepack.text import counted, printable
from edgepack.wire.reports import Outcomes

STATES = (
    "COMMITTED",
    "WORKING",
    "OFFERED",
    "WAITING",
    "FAILED",
    "SILENT",
    "WITHDRAWN",
    "RECALLED",
)
"""Of a device's part in a rollout, in the order in which they are told."""

_QUIET = {
    "no baseline": " (nothing is known of the release before)",
    "no evidence": "",
    "off": "",
}
"""Verdicts of gates that come without numbers, and what a person may not know of them."""


def labels_line(labels: Mapping[str, str]) -> str:
    """Return the labels as text."""
    return " ".join(f"{key}={value}" for key, value in labels.items()) or "–"


def counts_line(rollout: RolloutView) -> str:
    """Return devices by state, in words."""
    counts = rollout.counts
    states = (*STATES, *sorted(counts.keys() - set(STATES)))
    return ", ".join(f"{counts[s]} {s.lower()}" for s in states if counts.get(s))


def numbers_line(numbers: Mapping[str, int]) -> str:
    """Return counts in words: `3 need, 1 event`."""
    return ", ".join(f"{number} {what}" for what, number in numbers.items())


def outcomes_line(inferences: Mapping[str, int]) -> str:
    """Return how inferences ended: `984 finished, 12 failed, 3 gave NaN or infinity`."""
    words = {
        "finished": "finished",
        "failed": "failed",
        "not_finite": "gave NaN or infinity",
        "bad_inputs": "had NaN or infinity in an input",
    }
    return ", ".join(f"{inferences.get(key, 0):,} {word}" for key, word in words.items())


def energy_line(energy: Mapping[str, int]) -> str:
    """Return the energy of an inference: `0.213 J an inference, of 1,200 inferences`."""
    count = energy["inferences"]
    mean_j = energy["millijoules"] / 1000 / count
    return f"{mean_j:.3g} J an inference, of {counted(count, 'inference')}"


def failures_line(outcomes: Outcomes) -> str:
    """Return how many of a model's recent inferences went wrong."""
    return (
        f"of {outcomes.inferences:,} recent inferences {outcomes.failed:,} failed, "
        f"{outcomes.not_finite:,} gave NaN or infinity" + _bad_inputs(outcomes)
    )


def _bad_inputs(outcomes: Outcomes) -> str:
    if not outcomes.bad_inputs:
        return ""
    name = printable(outcomes.bad_input)
    return f", {outcomes.bad_inputs:,} had NaN or infinity in the input {name}"


def gate_numbers(view: GateView) -> tuple[str, str, str, str, str]:
    """Return a gate's numbers as text: before, now, change, lower bound, threshold."""
    gate = BY_NAME.get(view.name)
    if gate is None:  # a share as it stands
        share, threshold = (f"{x:.0%}" if x is not None else "" for x in (view.now, view.threshold))
        return "", share, "", "", threshold
    before, now = (_amount(number, view.unit) for number in (view.before, view.now))
    change, bound, threshold = (
        "" if number is None else gate.shown(number)
        for number in (
            None if gate.comparison == "share" else view.value,
            view.bound,
            view.threshold,
        )
    )
    return before, now, change, bound, threshold


def told_gates(gates: Sequence[GateView]) -> tuple[GateView, ...]:
    """Return the gates with numbers, the gates that stopped the rollout first."""
    told = (view for view in gates if view.verdict not in _QUIET)
    first = ("breach", "hold")
    return tuple(
        sorted(told, key=lambda view: first.index(view.verdict) if view.verdict in first else 2)
    )


def quiet_gates(gates: Sequence[GateView]) -> tuple[str, ...]:
    """Return a line for each verdict that has no numbers: `no evidence: p95, errors`.

    A gate without evidence on a kind of hardware is listed with that hardware.
    """
    verdicts: dict[str, set[str]] = defaultdict(set)
    for view in gates:
        verdicts[view.name].add(view.verdict)
    lines = []
    for verdict, meaning in _QUIET.items():
        names = dict.fromkeys(
            view.name if len(verdicts[view.name]) == 1 else f"{view.name} on {view.hardware_class}"
            for view in gates
            if view.verdict == verdict
        )
        if names:
            lines.append(f"{verdict}: {', '.join(names)}{meaning}")
    return tuple(lines)


def finding_lines(finds: Sequence[Finding]) -> tuple[str, ...]:
    """Return the least changes that a rollout finds, a line for each hardware class."""
    by_class: dict[str, list[Finding]] = defaultdict(list)
    for one in finds:
        by_class[one.hardware_class].append(one)
    lines = []
    for name, told in by_class.items():
        gate = BY_NAME[told[0].gate]
        steps = ", ".join(
            f"{gate.shown(one.least)} on {counted(one.devices, 'device')} "
            + (f"with {counted(one.controls, 'control')}" if one.controls else "without controls")
            for one in told
        )
        noise = f"noise {told[0].noise:.3f}"
        lines.append(f"{gate.name} of {name or 'unknown hardware'}: {steps} ({noise})")
    if any(not one.controls for one in finds):
        lines.append(
            "without controls 2.5 % is not promised: a hot day looks like the release; "
            "--control 10% holds devices back"
        )
    return tuple(lines)


def details_line(details: Mapping[str, Number]) -> str:
    """Return the details of an action: `wave 1, devices 5, value 0.4`, without empty values."""
    return ", ".join(
        name if value is True else f"{name} {f'{value:g}' if isinstance(value, float) else value}"
        for name, value in ((_words_of(name), value) for name, value in details.items())
        if value is not None and value is not False and value != ""
    )


def _words_of(name: str) -> str:
    """Return a setting's name in words; a gate with a hardware class, `p95 x86_64`, stays."""
    return name.replace("_", " ") if name.isidentifier() else name


def _amount(number: float | None, unit: str) -> str:
    if number is None:
        return ""
    if unit == "bytes":
        return f"{number / 1e6:.0f} MB"
    return f"{number:.1%}" if unit == "%" else f"{number:.3g} {unit}"


def short_provider(provider: str) -> str:
    """Return a provider's name without the common suffix."""
    return provider.removesuffix("ExecutionProvider")


def ago(moment: float | None, now: float) -> str:
    """Return the age of a moment for people."""
    if moment is None:
        return "never"
    seconds = max(0, int(now - moment))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit} ago"
    return f"{seconds} s ago"


def stamp(moment: float, now: float) -> str:
    """Return a time of day, with its date when that is another than today's."""
    try:
        then = time.localtime(moment)
    except (OverflowError, ValueError, OSError):
        return "never"  # a device may say any number
    is_today = then[:3] == time.localtime(now)[:3]
    return time.strftime("%H:%M:%S" if is_today else "%Y-%m-%d %H:%M:%S", then)


def megabytes(size_bytes: float) -> str:
    """Return a size, for people."""
    return f"{size_bytes / 1e6:.1f} MB"

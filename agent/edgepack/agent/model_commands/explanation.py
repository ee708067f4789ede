"""The reason why a model's variant, release and provider serve, from state that exists."""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from edgepack.agent.model_commands.serving import find_serving
from edgepack.agent.model_commands.standing import local_time, standing_lines, text_lines
from edgepack.agent.state.pointer import ActivePointer
from edgepack.agent.update.status import ModelStatus, read_status
from edgepack.text import printable_lines
from edgepack.wire.reports import ProbeResult


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Decision about a model: wanted, chosen, because.

    Attributes:
        name: The model.
        pointer: The serving release with its choice: candidates with times, rejected variants.
        status: Update, watch and previous release.
    """

    name: str
    pointer: ActivePointer
    status: ModelStatus


def explain(state_dir: Path, name: str) -> Explanation:
    """Return the decision about a serving model.

    Args:
        state_dir: The agent's state folder; the agent need not run.
        name: The model.

    Raises:
        DeviceError: Nothing serves, or the state cannot be read.
    """
    pointer = find_serving(state_dir, name)
    return Explanation(name=name, pointer=pointer, status=read_status(state_dir).models[name])


def describe_explanation(found: Explanation) -> str:
    """Return the decision as lines for a person."""
    return printable_lines(_lines(found))


def _lines(found: Explanation) -> Iterator[str]:
    pointer, status = found.pointer, found.status
    bundle, choice = pointer.bundle, pointer.choice
    kept = "committed" if pointer.committed else "not committed yet"
    yield f"model     {found.name}"
    yield f"release   {bundle.version} (release {bundle.release}, {bundle.digest[:12]}), {kept}"
    yield f"          serves since {local_time(pointer.since)}"
    yield f"wanted    {choice.wanted or 'any provider'}"
    fallback = ", a fallback" if choice.is_fallback else ""
    yield f"chosen    {choice.chosen} on {choice.provider}{fallback}"
    yield f"because   {choice.because}"
    yield ""
    for probe in sorted(choice.probes, key=lambda one: _rank(one, choice.chosen)):
        yield from _candidate(probe, is_chosen=probe.variant == choice.chosen)
    for variant, because in choice.rejected.items():
        yield f"no        {variant}"
        yield f"          {because}"
    yield ""
    if status.fault:
        yield f"damaged   {status.fault}"
    yield from standing_lines(status)
    if pointer.basis:
        basis = (f"{key} {value}" for key, value in pointer.basis.items() if len(value) < 80)
        yield f"based on  {'; '.join(basis)}"


def _rank(probe: ProbeResult, chosen: str) -> tuple[bool, bool, float]:
    return (probe.variant != chosen, not probe.right, probe.inference_ms or float("inf"))


def _candidate(probe: ProbeResult, *, is_chosen: bool) -> Iterator[str]:
    mark = "chosen" if is_chosen else "right" if probe.right else "wrong"
    took = "" if probe.latency_ms is None else f", {probe.latency_ms:.3g} ms"
    nodes = f", {probe.taken} of {probe.total} nodes" if probe.total else ""
    yield f"{mark:9} {probe.variant} on {probe.provider}{took}{nodes}"
    yield f"          {probe.because}"
    if probe.texts is not None:
        yield from text_lines(probe.texts)

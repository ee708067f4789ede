"""Check of the slots of the agent itself."""

from collections.abc import Iterator

from edgepack.agent.doctor.findings import Device, Finding, ok, warn, wrong
from edgepack.agent.self_update.agent_slots import ACTIVE, MAX_TRIES, TRIAL, find_agent_slots


def check_slots(_: Device) -> Iterator[Finding]:
    """Check that each slot that the launcher may start is whole, and report a running trial."""
    slots = find_agent_slots()
    for found in slots.examine() if slots is not None else ():
        title = f"version {found.version} of the agent (slot {found.slot}, {found.pointer})"
        if found.damage:
            verdict = wrong if found.pointer == ACTIVE else warn
            yield verdict(
                "slots",
                f"{title} is damaged and not started: {found.damage}",
                "install another release of the agent, which replaces the damaged slot",
            )
        elif found.pointer == TRIAL:
            yield warn(
                "slots",
                f"{title} is on trial, start {found.tries} of {MAX_TRIES}",
                "wait until the trial ends: edgepack-agent status",
            )
        else:
            yield ok("slots", f"{title} is whole")

"""The device's report: its journal and pointer, as the controller sees them. Pure."""

from edgepack.agent.pointer import ActivePointer
from edgepack.agent.update.journal import Journal
from edgepack.wire.messages import Active, DeviceFacts, Reported


def make_report(
    journal: Journal,
    pointer: ActivePointer | None,
    facts: DeviceFacts,
    *,
    progress: float,
    boot: str,
    count: int,
    at: float,
) -> Reported:
    """Mirrors the journal.

    Args:
        journal: The journal as it was last saved.
        pointer: What serves.
        facts: What the device is.
        progress: Share of the bytes that are there, 0..1.
        boot: Random id of this process.
        count: Number of this report.
        at: Seconds since the epoch.
    """
    offer = journal.offer
    active = None
    if pointer is not None:
        active = Active(bundle=pointer.bundle, choice=pointer.choice, since=pointer.since)
    return Reported(
        online=True,
        at=at,
        boot=boot,
        count=count,
        facts=facts,
        state=journal.state,
        because=journal.because,
        sequence=offer.sequence if offer else 0,
        rollout=offer.rollout if offer else "",
        target=offer.bundle if offer else None,
        active=active,
        previous=journal.previous,
        progress=progress,
    )

"""The device's report: its journal and pointer, as the controller sees them, and when. Pure."""

import zlib

from edgepack.agent.state.pointer import ActivePointer
from edgepack.agent.update.journal import Journal
from edgepack.wire.messages import Active, DeviceFacts, Reported

HEARTBEAT_S = 60.0
"""The report is sent so often at least."""


def report_due_s(device: str, *, is_news: bool) -> float:
    """Seconds after a report until the next one is due, though nothing may have changed.

    A broker drops messages for a controller that cannot keep up, at any QoS: with 200 devices that
    finished at once, mosquitto (its default queue is 1,000) lost the last word of 109. So news is
    said once more after 10 to 20 s, by each device at a moment of its own, and then as a heartbeat.
    """
    if not is_news:
        return HEARTBEAT_S
    return 10.0 + zlib.crc32(device.encode()) % 1000 / 100


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

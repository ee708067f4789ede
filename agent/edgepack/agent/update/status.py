"""What the agent's state folder says of the device; the agent need not run."""

from pathlib import Path

import msgspec

from edgepack.agent.state.lock import is_locked
from edgepack.agent.state.pointer import ActivePointer, read_pointer
from edgepack.agent.update.journal import read_journal
from edgepack.errors import DeviceError
from edgepack.wire.messages import BundleRef


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """A device at a glance.

    Attributes:
        is_running: Whether an agent holds the state folder.
        state, because: Where the latest update is, and why.
        target: The bundle that the state speaks of.
        rollout, sequence: The offer it came with; 0 and "" when it came from a file.
        pending: A newer offer that waits.
        restarts: Restarts during the latest update.
        active: What serves now.
        previous: The release that was committed before.
    """

    is_running: bool
    state: str
    because: str
    target: BundleRef | None
    rollout: str
    sequence: int
    pending: BundleRef | None
    restarts: int
    active: ActivePointer | None
    previous: BundleRef | None


def read_status(state_dir: Path) -> Status:
    """Reads the status.

    Raises:
        DeviceError: There is no such folder, or its pointer is damaged.
    """
    if not state_dir.is_dir():
        raise DeviceError(
            "there is no such state folder, so no agent has run with it",
            found_in=str(state_dir),
            remedy="name the agent's settings with --config, or its folder with --state-dir",
        )
    journal = read_journal(state_dir)
    offer = journal.offer if journal else None
    pending = journal.pending if journal else None
    return Status(
        is_running=is_locked(state_dir),
        state=journal.state if journal else "IDLE",
        because=journal.because if journal else "",
        target=offer.bundle if offer else None,
        rollout=offer.rollout if offer else "",
        sequence=offer.sequence if offer else 0,
        pending=pending.bundle if pending else None,
        restarts=journal.restarts if journal else 0,
        active=read_pointer(state_dir),
        previous=journal.previous if journal else None,
    )

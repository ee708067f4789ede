"""Status of the device from the agent's state folder; the agent need not run."""

from pathlib import Path

import msgspec

from edgepack.agent.state.broker_state import BrokerState, read_broker_state
from edgepack.agent.state.disk import read_disk_state
from edgepack.agent.state.lock import is_locked
from edgepack.agent.state.model_server import ServerState, read_server_state
from edgepack.agent.state.models import model_names
from edgepack.agent.state.pointer import ActivePointer, read_pointer
from edgepack.agent.state.slots import slot_folder
from edgepack.agent.telemetry.failing import Failing, read_failing
from edgepack.agent.telemetry.journal import read_drift
from edgepack.agent.update.journal import read_journal
from edgepack.bundle.slot import check_presence
from edgepack.durable import disk_remedy
from edgepack.errors import BundleError, DeviceError
from edgepack.wire.orders import BundleRef, RunModel
from edgepack.wire.reports import Drift, Watched


class ModelStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A model at a glance.

    Attributes:
        state, because: Where its latest update is, and why.
        target: The bundle that the state speaks of.
        rollout, sequence: The order of the update; 0 and "" for an order given on this device.
        pending: A newer offer that waits.
        restarts: Restarts that count against the latest update.
        active: Serving release.
        previous: The release for a rollback: the formerly serving release until the update is
            committed, then the release committed before.
        trouble: Why the pointer cannot be read; "" if readable.
        fault: Why the slot of the pointer is incomplete; "" if complete. Presence, type and size of
            the files are checked, and no content.
        drift: Differences of recent inferences from the build's samples; None while too few ran.
        watch: The watch over the serving release: state, symptom, and the last decision.
        failing: Recent inferences if too many fail or give NaN; None if they work.
    """

    state: str
    because: str
    target: BundleRef | None
    rollout: str
    sequence: int
    pending: BundleRef | None
    restarts: int
    active: ActivePointer | None
    previous: BundleRef | None
    trouble: str
    fault: str = ""
    drift: Drift | None = None
    failing: Failing | None = None
    watch: Watched = Watched()


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """A device at a glance.

    Attributes:
        is_running: Whether an agent holds the state folder; None when this user may not look.
        models: By name.
        broker: The last known connection to the broker; None if the agent never tried.
        server: The model server; None if the agent runs none.
        disk: The present faults of the state folder's disk; "" without a fault.
    """

    is_running: bool | None
    models: dict[str, ModelStatus]
    broker: BrokerState | None = None
    disk: str = ""
    server: ServerState | None = None


def read_status(state_dir: Path) -> Status:
    """Read the status.

    Raises:
        DeviceError: There is no such folder.
    """
    if not state_dir.is_dir():
        raise DeviceError(
            "there is no such state folder, so no agent has run with it",
            found_in=str(state_dir),
            remedy="name the agent's settings with --config, or its folder with --state-dir",
        )
    return Status(
        is_running=is_locked(state_dir),
        models={name: _read_model(state_dir, name) for name in model_names(state_dir)},
        broker=read_broker_state(state_dir),
        disk=read_disk_state(state_dir),
        server=read_server_state(state_dir),
    )


def _read_model(state_dir: Path, name: str) -> ModelStatus:
    journal = read_journal(state_dir, name)
    offer = journal.offer if journal else None
    pending = journal.pending if journal else None
    active, trouble = None, ""
    try:
        active = read_pointer(state_dir, name)
    except DeviceError as error:
        trouble = error.problem
    previous = journal.previous if journal else None
    if journal and active and not active.committed:
        previous = journal.back
    return ModelStatus(
        state=journal.state if journal else "IDLE",
        because=journal.because if journal else "",
        target=offer.bundle if isinstance(offer, RunModel) else None,
        rollout=offer.rollout if offer else "",
        sequence=offer.sequence if offer else 0,
        pending=pending.bundle if isinstance(pending, RunModel) else None,
        restarts=journal.restarts if journal else 0,
        active=active,
        previous=previous.bundle if previous else None,
        trouble=trouble,
        fault=_slot_fault(state_dir, active) if active else "",
        drift=read_drift(state_dir, active.digest) if active else None,
        failing=read_failing(state_dir).get(active.digest) if active else None,
        watch=journal.watch.told if journal else Watched(),
    )


def _slot_fault(state_dir: Path, active: ActivePointer) -> str:
    try:
        folder = slot_folder(state_dir, active.digest)
        check_presence(folder, active.digest, active.choice.chosen)
    except BundleError as error:
        return error.problem
    except OSError as error:
        return f"its slot cannot be read now: {error.strerror} ({disk_remedy(error)})"
    return ""

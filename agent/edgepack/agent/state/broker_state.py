"""The agent's note on its connection to the broker, for `edgepack-agent status`."""

import contextlib
import threading
import time
from pathlib import Path

import msgspec

from edgepack.agent.state.state_file import read_regular
from edgepack.durable import write_file
from edgepack.versions import Format, NewerVersionError, Version

BROKER_STATE_FILE = "broker.json"


class BrokerState(msgspec.Struct, frozen=True, kw_only=True):
    """The last known state of the connection.

    Attributes:
        broker: Where the broker is.
        is_connected: Whether the broker is reached.
        since: When that began, seconds since the epoch.
        because: Why the broker is not reached; "" if reached, or before the first attempt.
    """

    broker: str
    is_connected: bool
    since: float
    because: str = ""


BROKER_STATE = Format("state of the connection", BrokerState, Version(1, 0))


def read_broker_state(state_dir: Path) -> BrokerState | None:
    """Return the note; None if there is none, or none that can be read."""
    try:
        content = read_regular(state_dir / BROKER_STATE_FILE)
        return BROKER_STATE.decode(content).value if content is not None else None
    except (OSError, ValueError, NewerVersionError):
        return None


class BrokerStateNote:
    """Keeps the note, from any thread; written only after a change.

    Args:
        state_dir: The agent's state folder.
        broker: Where the broker is.
    """

    def __init__(self, state_dir: Path, broker: str) -> None:
        self._path, self._broker = state_dir / BROKER_STATE_FILE, broker
        self._lock = threading.Lock()
        self._state: BrokerState | None = None

    def note(self, *, is_connected: bool, because: str = "") -> None:
        """Note that the broker is reached, or is not."""
        with self._lock:
            before = self._state
            is_same = before is not None and before.is_connected == is_connected
            since = before.since if before is not None and is_same else time.time()
            state = BrokerState(
                broker=self._broker, is_connected=is_connected, since=since, because=because
            )
            if state == before:
                return
            self._state = state
            with contextlib.suppress(OSError):  # the note is for a person who looks
                write_file(self._path, BROKER_STATE.encode(state), lasting=False)

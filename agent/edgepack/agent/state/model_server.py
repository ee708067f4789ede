"""The model server's socket, and the agent's note on the server for `edgepack-agent status`."""

import contextlib
import socket
import time
from pathlib import Path

import msgspec

from edgepack.agent.state.state_file import RUNTIME_LINK, read_regular
from edgepack.agent.state.unix_socket import short_path
from edgepack.durable import write_file
from edgepack.versions import Format, NewerVersionError, Version

SOCKET_FILE, LOCK_FILE, STATE_FILE = "server.sock", "server.lock", "server.json"
MEMORY_FILE = "memory.sock"
"""Socket over which clients pass descriptors of sealed memory."""
F_SEAL_FUTURE_WRITE = 0x10
"""Seal of Linux 5.1: only mappings from before the seal may write, and no page is taken out."""


class ServerState(msgspec.Struct, frozen=True, kw_only=True):
    """State of a model server that the agent runs.

    Attributes:
        is_running: Whether the process runs.
        since: Start of that, seconds since the epoch.
        restarts: Crashes since the agent started.
        because: Reason of the last crash; "" without one.
    """

    is_running: bool
    since: float
    restarts: int = 0
    because: str = ""


SERVER_STATE = Format("state of the model server", ServerState, Version(1, 0))


def socket_folder(state_dir: Path) -> Path:
    """Return the folder of the socket: the runtime directory (tmpfs), else the state folder."""
    runtime = state_dir / RUNTIME_LINK
    return runtime if runtime.is_dir() else state_dir


def connect_to_server(state_dir: Path, timeout_s: float, name: str = SOCKET_FILE) -> socket.socket:
    """Return a connection to the server.

    Args:
        state_dir: The agent's state folder.
        timeout_s: Seconds for the connection and each later step.
        name: Name of the socket.

    Raises:
        OSError: No server listens, or this user may not use the socket.
    """
    peer = socket.socket(socket.AF_UNIX)
    try:
        peer.settimeout(timeout_s)
        with short_path(socket_folder(state_dir) / name) as place:
            peer.connect(place)
    except OSError:
        peer.close()
        raise
    return peer


def read_server_state(state_dir: Path) -> ServerState | None:
    """Return the note; None if there is none, or none that can be read."""
    try:
        content = read_regular(state_dir / STATE_FILE)
        return SERVER_STATE.decode(content).value if content is not None else None
    except (OSError, ValueError, NewerVersionError):
        return None


def note_server_state(
    state_dir: Path, *, is_running: bool, restarts: int, because: str = ""
) -> None:
    """Write the note."""
    state = ServerState(
        is_running=is_running, since=time.time(), restarts=restarts, because=because
    )
    with contextlib.suppress(OSError):  # The note is for a person who looks.
        write_file(state_dir / STATE_FILE, SERVER_STATE.encode(state), lasting=False)


def forget_server_state(state_dir: Path) -> None:
    """Remove the note of a server that the settings do not ask for."""
    with contextlib.suppress(OSError):
        (state_dir / STATE_FILE).unlink(missing_ok=True)

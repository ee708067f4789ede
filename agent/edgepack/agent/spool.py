"""The spool: how processes that serve a model tell the agent what inferences took.

Each process keeps one small file per model it served, under `<state_dir>/latency/`, and writes
it anew every few seconds. Its counts only grow, so the agent may read it whenever it likes, and
a process never needs to know whether the agent runs.
"""

from pathlib import Path

import msgspec

from edgepack.durable import write_file
from edgepack.errors import TransferError
from edgepack.wire import histogram
from edgepack.wire.messages import Histogram

SPOOL_FOLDER = "latency"
MAX_SPOOL_BYTES = 256 * 1024


class Spooled(msgspec.Struct, frozen=True, kw_only=True):
    """What one process saw of one model since it opened it.

    Attributes:
        token: Random id of the process's record: another one under the same file name is new.
        pid: The process.
        digest, variant, provider: What ran.
        since, written_at: When counting began, and when this was written; seconds since the epoch.
        latency: Of all its inferences so far.
        failures: Inferences that the provider failed.
        is_final: Whether the process closed the model: the file will not change any more.
        troubles: Why it could not follow the pointer to a newer model, one sentence each.
    """

    token: str
    pid: int
    digest: str
    variant: str
    provider: str
    since: float
    written_at: float
    latency: Histogram
    failures: int = 0
    is_final: bool = False
    troubles: tuple[str, ...] = ()


def spool_folder(state_dir: Path) -> Path:
    """Where spool files lie."""
    return state_dir / SPOOL_FOLDER


def write_spooled(state_dir: Path, spooled: Spooled) -> Path:
    """Writes what a process saw, over what it wrote before.

    Raises:
        OSError: The folder cannot be made or written.
    """
    folder = spool_folder(state_dir)
    folder.mkdir(exist_ok=True)
    path = folder / f"{spooled.pid}-{spooled.digest[:16]}-{spooled.token}.json"
    write_file(path, msgspec.json.encode(spooled))
    return path


def read_spooled(path: Path) -> Spooled:
    """Reads a spool file; any process of the device may have written it, so it is judged.

    Raises:
        TransferError: It is too long, malformed, or its numbers contradict each other.
        OSError: It cannot be read.
    """
    with path.open("rb") as file:
        content = file.read(MAX_SPOOL_BYTES + 1)
    if len(content) > MAX_SPOOL_BYTES:
        raise TransferError(
            f"spool file is longer than {MAX_SPOOL_BYTES} bytes", found_in=str(path)
        )
    try:
        spooled = msgspec.json.decode(content, type=Spooled)
    except (msgspec.DecodeError, RecursionError) as error:
        raise TransferError(f"malformed spool file: {error}", found_in=str(path)) from error
    histogram.check(spooled.latency)
    if spooled.failures < 0 or spooled.pid <= 0:
        raise TransferError("malformed spool file: a count is negative", found_in=str(path))
    return spooled

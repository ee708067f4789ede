"""Inputs that a device keeps for a later build, where its settings ask for that; by default none.

The samples lie in a single folder, a file each. The agent makes the folder, with the settings
inside, and removes the folder with all samples if capture is switched off: a process that serves a
model writes nothing without the folder. There are two kinds of samples:

- plain samples (`.npz`), for a person at the device: readable by their writer alone, never sent;
- sealed samples (`.sealed`), for a request of the fleet: encrypted to the fleet's key before the
  first byte is written, and uploaded by the agent.

A sample has a number in its name, and the samples of a pool with the greatest numbers stay. Plain
samples have random numbers. So the kept samples are drawn evenly from all offered samples, by any
number of processes, without counting. The number of a sealed sample tells how well it fits the
request.
"""

import contextlib
import os
import re
import secrets
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from edgepack.agent.state.models import MODEL_NAME
from edgepack.agent.state.pointer import active_models
from edgepack.agent.state.state_file import put_aside, read_shared, remove, share_path
from edgepack.durable import write_file
from edgepack.versions import Format, NewerVersionError, Version

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

CAPTURED_FOLDER = "captured"
SETTINGS_FILE = "settings.json"
FOLDER_MODE = 0o3770
"""Who serves models is of the state folder's group, and removes no file of another user."""
FILE_MODE = 0o600
SEALED_MODE = 0o640
"""The agent, of the same group, uploads a sealed sample."""
PLAIN = "npz"
"""Suffix of plain samples."""
_NAME = re.compile(
    rf"([0-9a-f]{{16}})-({MODEL_NAME.pattern})"
    r"\.(npz|([a-z0-9]{1,32})-[a-z]{1,16}\.sealed|([a-z0-9]{1,32})\.dropped)"
)
_MAX_DROPPED_BYTES = 4096
_PRIORITY_BITS = 32


class SealedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Request of the fleet for samples of a model, while the device chooses the samples.

    Attributes:
        request: Its id.
        samples: Samples of this device, at most.
        of: Reasons of a choice.
        recipient: Public key (PEM) to which samples are encrypted.
        place: Place of the samples, see `edgepack.bundle.sealed_samples`.
    """

    request: str
    samples: int
    of: tuple[str, ...]
    recipient: str
    place: str

    def share(self, reason: str) -> int:
        """Return the number of samples for a reason."""
        whole, rest = divmod(self.samples, len(self.of))
        return whole + (self.of.index(reason) < rest)


class CaptureSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings for captured samples.

    Attributes:
        samples: Of each model, at most.
        max_bytes: Of each model, at most.
        disk_reserve_bytes: Free space that must be left.
        requests: By model: the request for which samples are chosen.
        uploading: Requests whose samples wait for their upload.
        texts: Models of texts, such as encoders, whose inputs may be kept.
    """

    samples: int
    max_bytes: int
    disk_reserve_bytes: int = 0
    requests: dict[str, SealedRequest] = {}
    uploading: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()

    @property
    def is_on(self) -> bool:
        """True if samples are kept, of any kind."""
        return self.samples > 0 or bool(self.requests) or bool(self.uploading)


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of samples that compete.

    Attributes:
        suffix: End of their names.
        samples, max_bytes: Bounds.
        disk_reserve_bytes: Free space that must be left.
        mode: Permission bits.
    """

    suffix: str
    samples: int
    max_bytes: int
    disk_reserve_bytes: int
    mode: int


def plain_pool(settings: CaptureSettings) -> Pool:
    """Return the bounds of plain samples."""
    return Pool(
        suffix=PLAIN,
        samples=settings.samples,
        max_bytes=settings.max_bytes,
        disk_reserve_bytes=settings.disk_reserve_bytes,
        mode=FILE_MODE,
    )


def sealed_pool(settings: CaptureSettings, request: SealedRequest, reason: str) -> Pool:
    """Return the bounds of the samples that a device chooses for a reason."""
    return Pool(
        suffix=sealed_suffix(request.request, reason),
        samples=request.share(reason),
        max_bytes=settings.max_bytes // len(request.of),
        disk_reserve_bytes=settings.disk_reserve_bytes,
        mode=SEALED_MODE,
    )


def sealed_suffix(request: str, reason: str) -> str:
    """Return the suffix of the samples that a device chooses for a reason."""
    return f"{request}-{reason}.sealed"


class Dropped(msgspec.Struct, frozen=True, kw_only=True):
    """Samples that a process could not encrypt or keep; they were written nowhere.

    Attributes:
        count: Number of samples.
        because: Reason of the last.
    """

    count: int = 0
    because: str = ""


DROPPED = Format("dropped samples", Dropped, Version(1, 0))


CAPTURE = Format("capture settings", CaptureSettings, Version(1, 0))


class Kept(NamedTuple):
    """A sample on the disk."""

    priority: int
    path: Path
    size_bytes: int


def captured_folder(state_dir: Path) -> Path:
    """Return the folder of captured samples."""
    return state_dir / CAPTURED_FOLDER


def switch_capture(state_dir: Path, settings: CaptureSettings) -> str:
    """Create the folder of captured samples, or delete the folder with its content. For the agent.

    Args:
        state_dir: The state folder.
        settings: Settings of the device, and the fleet's requests; without any, capture is off.

    Returns:
        Reason for a failure, as a sentence; "" after success.
    """
    folder = captured_folder(state_dir)
    try:
        if not settings.is_on:
            remove(folder)
            return ""
        if os.path.lexists(folder) and (folder.is_symlink() or not folder.is_dir()):
            put_aside(folder)
        folder.mkdir(exist_ok=True)
        share_path(folder, state_dir.stat().st_gid, FOLDER_MODE)
        serving = active_models(state_dir)
        known = {*settings.uploading, *(one.request for one in settings.requests.values())}
        for path in folder.iterdir():
            name = _NAME.fullmatch(path.name)
            is_sample = name is not None and (
                name[2] in serving if name[3] == PLAIN else (name[4] or name[5]) in known
            )
            # What a killed process left, what one wrote while its model was removed, and anything
            # that is not a file.
            if not stat.S_ISREG(path.lstat().st_mode) or not (
                is_sample or path.name == SETTINGS_FILE
            ):
                remove(path)
        for model in serving:
            _free_space(kept_samples(state_dir, model), plain_pool(settings))
        write_file(folder / SETTINGS_FILE, CAPTURE.encode(settings))
    except OSError as error:
        return f"captured samples cannot be looked after: {error.strerror} ({folder})"
    return ""


def read_capture(state_dir: Path) -> CaptureSettings | None:
    """Return the settings; None where nothing is to be kept, or where that cannot be read."""
    try:
        content = read_shared(captured_folder(state_dir) / SETTINGS_FILE)
        found = CAPTURE.decode(content).value if content is not None else None
    except (OSError, ValueError, NewerVersionError):
        return None
    return found if found is not None and found.is_on else None


def kept_samples(state_dir: Path, model: str, suffix: str = PLAIN) -> list[Kept]:
    """Return the samples of a model in a pool, in order of removal."""
    found = []
    for path in captured_folder(state_dir).glob(f"*-{model}.{suffix}"):
        name = _NAME.fullmatch(path.name)
        if name is not None and (name[2], name[3]) == (model, suffix):
            with contextlib.suppress(FileNotFoundError):
                status = path.lstat()
                if stat.S_ISREG(status.st_mode):
                    found.append(Kept(int(name[1], 16), path, status.st_size))
    return sorted(found)


def keep_sample(
    state_dir: Path,
    model: str,
    feeds: "Mapping[str, npt.NDArray[np.generic]]",
    settings: CaptureSettings,
    *,
    priority: int,
) -> None:
    """Keep the inputs of an inference, if there is free space or the sample outranks others.

    Args:
        state_dir: The state folder.
        model: The model's name.
        feeds: By input name, all numeric.
        settings: How much is kept.
        priority: Random, of 64 bits.

    Raises:
        OSError: The folder is gone, or cannot be written.
    """
    keep_content(state_dir, model, encode_sample(feeds), plain_pool(settings), priority)


def keep_content(
    state_dir: Path, model: str, content: bytes, pool: Pool, priority: int
) -> Path | None:
    """Keep an encoded sample as `keep_sample` does; return the file, None if not kept.

    Raises:
        OSError: The folder is gone, or cannot be written.
    """
    folder = captured_folder(state_dir)
    free = shutil.disk_usage(folder).free
    if len(content) > min(pool.max_bytes, free - pool.disk_reserve_bytes):
        return None
    new = Kept(priority, folder / f"{priority:016x}-{model}.{pool.suffix}", len(content))
    if not _free_space(kept_samples(state_dir, model, pool.suffix), pool, new):
        return None
    write_file(new.path, content, mode=pool.mode, lasting=False)
    return new.path


def forget_samples(state_dir: Path, model: str) -> None:
    """Remove all samples of a model.

    Raises:
        OSError: A sample cannot be removed.
    """
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for path in captured_folder(state_dir).iterdir():
            name = _NAME.fullmatch(path.name)
            if name is not None and name[2] == model and stat.S_ISREG(path.lstat().st_mode):
                path.unlink(missing_ok=True)


def note_dropped(state_dir: Path, model: str, request: str, writer: str, dropped: Dropped) -> None:
    """Write the count of dropped samples of a process.

    Args:
        state_dir: The state folder.
        model, request: Model and request of the samples.
        writer: Name of the process, 16 hex digits.
        dropped: Count and reason.

    Raises:
        OSError: The folder is gone, or cannot be written.
    """
    path = captured_folder(state_dir) / f"{writer}-{model}.{request}.dropped"
    write_file(path, DROPPED.encode(dropped), mode=SEALED_MODE, lasting=False)


def dropped_samples(state_dir: Path, model: str, request: str) -> Dropped:
    """Return the dropped samples of all processes."""
    count, because = 0, ""
    for kept in kept_samples(state_dir, model, f"{request}.dropped"):
        try:
            content = read_shared(kept.path, limit_bytes=_MAX_DROPPED_BYTES)
            found = DROPPED.decode(content or b"").value
        except (OSError, ValueError, NewerVersionError):
            continue
        count, because = count + max(0, found.count), found.because or because
    return Dropped(count=count, because=because)


def rank_priority(score: float) -> int:
    """Return the number of a sample whose score is 0…1; equal scores are drawn by chance."""
    scale = (1 << _PRIORITY_BITS) - 1
    return (round(min(max(score, 0.0), 1.0) * scale) << _PRIORITY_BITS) + secrets.randbits(
        _PRIORITY_BITS
    )


def draw_priority() -> int:
    """Return a random number for `keep_sample`."""
    return secrets.randbits(64)


def encode_sample(feeds: "Mapping[str, npt.NDArray[np.generic]]") -> bytes:
    """Return a `.npz` with an array for each input, readable by `edgepack build --calibration`."""
    # For processes that serve a model: the agent needs no numpy.
    import numpy as np

    from edgepack.bundle.plain_arrays import encode_arrays

    return encode_arrays({name: np.asanyarray(feeds[name]) for name in sorted(feeds)})


def _free_space(kept: list[Kept], pool: Pool, new: Kept | None = None) -> bool:
    """Remove samples to make space; return True if there is space for a new sample.

    There is no space if the samples to remove rank higher, or belong to another user. A file that
    is larger than the pool is no sample, and goes first.
    """

    def may_be_sample(each: Kept) -> bool:
        return each.size_bytes <= pool.max_bytes

    count, size = (1, new.size_bytes) if new else (0, 0)
    size += sum(each.size_bytes for each in kept)
    count += len(kept)
    for each in sorted(kept, key=may_be_sample):
        if count <= pool.samples and size <= pool.max_bytes:
            break
        if new is not None and each.priority > new.priority and may_be_sample(each):
            return False
        try:
            each.path.unlink(missing_ok=True)
        except PermissionError:
            return False
        count, size = count - 1, size - each.size_bytes
    return count <= pool.samples and size <= pool.max_bytes

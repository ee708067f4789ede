"""Inputs that a device keeps for a later build, where its settings ask for that; by default none.

The samples lie in a single folder, a file each, readable by their writer alone. The agent makes the
folder, with the settings inside, and removes the folder with all samples if capture is switched
off: a process that serves a model writes nothing without the folder. Nothing here is sent anywhere.

A sample has a random number in its name, and the samples with the greatest numbers stay. So the
kept samples are drawn evenly from all offered samples, by any number of processes, without
counting.
"""

import contextlib
import io
import os
import re
import secrets
import shutil
import stat
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from edgepack.agent.state.models import MODEL_NAME
from edgepack.agent.state.pointer import active_models
from edgepack.agent.state.state_file import put_aside, read_shared, remove
from edgepack.durable import write_file
from edgepack.versions import Format, NewerVersionError, Version

CAPTURED_FOLDER = "captured"
SETTINGS_FILE = "settings.json"
FOLDER_MODE = 0o3770
"""Who serves models is of the state folder's group, and removes no file of another user."""
FILE_MODE = 0o600
_NAME = re.compile(rf"([0-9a-f]{{16}})-({MODEL_NAME.pattern})\.npz")


class CaptureSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings for captured samples.

    Attributes:
        samples: Of each model, at most.
        max_bytes: Of each model, at most.
        disk_reserve_bytes: Free space that must be left.
    """

    samples: int
    max_bytes: int
    disk_reserve_bytes: int = 0


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
        settings: Settings of the device; 0 samples switch capture off.

    Returns:
        Reason for a failure, as a sentence; "" after success.
    """
    folder = captured_folder(state_dir)
    try:
        if not settings.samples:
            remove(folder)
            return ""
        if os.path.lexists(folder) and (folder.is_symlink() or not folder.is_dir()):
            put_aside(folder)
        folder.mkdir(exist_ok=True)
        os.chown(folder, -1, state_dir.stat().st_gid)
        folder.chmod(FOLDER_MODE)
        serving = active_models(state_dir)
        for path in folder.iterdir():
            name = _NAME.fullmatch(path.name)
            is_sample = name is not None and name[2] in serving
            # What a killed process left, what one wrote while its model was removed, and anything
            # that is not a file.
            if not stat.S_ISREG(path.lstat().st_mode) or not (
                is_sample or path.name == SETTINGS_FILE
            ):
                remove(path)
        for model in serving:
            _free_space(kept_samples(state_dir, model), settings)
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
    return found if found is not None and found.samples > 0 else None


def kept_samples(state_dir: Path, model: str) -> list[Kept]:
    """Return the samples of a model, in order of removal."""
    found = []
    for path in captured_folder(state_dir).glob(f"*-{model}.npz"):
        name = _NAME.fullmatch(path.name)
        if name is not None and name[2] == model:
            with contextlib.suppress(FileNotFoundError):
                status = path.lstat()
                if stat.S_ISREG(status.st_mode):
                    found.append(Kept(int(name[1], 16), path, status.st_size))
    return sorted(found)


def keep_sample(
    state_dir: Path,
    model: str,
    feeds: Mapping[str, npt.NDArray[np.generic]],
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
    content = encode_sample(feeds)
    folder = captured_folder(state_dir)
    free = shutil.disk_usage(folder).free
    if len(content) > min(settings.max_bytes, free - settings.disk_reserve_bytes):
        return
    new = Kept(priority, folder / f"{priority:016x}-{model}.npz", len(content))
    if _free_space(kept_samples(state_dir, model), settings, new):
        write_file(new.path, content, mode=FILE_MODE, lasting=False)


def forget_samples(state_dir: Path, model: str) -> None:
    """Remove all samples of a model.

    Raises:
        OSError: A sample cannot be removed.
    """
    for each in kept_samples(state_dir, model):
        each.path.unlink(missing_ok=True)


def draw_priority() -> int:
    """Return a random number for `keep_sample`."""
    return secrets.randbits(64)


def encode_sample(feeds: Mapping[str, npt.NDArray[np.generic]]) -> bytes:
    """Return a `.npz` with an array for each input, readable by `edgepack build --calibration`.

    The file is not compressed: 5 MB of floats took 0.6 s compressed, and 10 ms uncompressed.
    """
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(feeds):
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(feeds[name]), allow_pickle=False)
    return content.getvalue()


def _free_space(kept: list[Kept], settings: CaptureSettings, new: Kept | None = None) -> bool:
    """Remove samples to make space; return True if there is space for a new sample.

    There is no space if the samples to remove rank higher, or belong to another user.
    """
    count, size = (1, new.size_bytes) if new else (0, 0)
    size += sum(each.size_bytes for each in kept)
    count += len(kept)
    for each in kept:
        if count <= settings.samples and size <= settings.max_bytes:
            break
        if new is not None and each.priority > new.priority:
            return False
        try:
            each.path.unlink(missing_ok=True)
        except PermissionError:
            return False
        count, size = count - 1, size - each.size_bytes
    return count <= settings.samples and size <= settings.max_bytes

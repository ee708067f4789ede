"""The files of a bundle, readable by ONNX Runtime; decrypted files lie in memory, briefly.

A variant has several files (external weights, precompiled contexts), which providers open by name.
So the variant is decrypted into a separate folder on a memory file system (tmpfs), readable by this
user only, and removed as soon as the model is opened. Files of a killed process are removed by its
parent, by the next agent start, or by the next process that decrypts.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edgepack.bundle.chunks import open_regular
from edgepack.bundle.manifest import (
    GOLDEN_FILE,
    MANIFEST_FILE,
    Encryption,
    Manifest,
    Variant,
    decode_manifest,
    is_golden,
)
from edgepack.errors import DeviceError

MEMORY_VARIABLE = "EDGEPACK_MEMORY_DIR"
KEY_VARIABLE = "EDGEPACK_DECRYPTION_KEY"

_USUAL = ("/dev/shm", "/run")
_IN_MEMORY = frozenset({"tmpfs", "ramfs"})
_PREFIX = "edgepack-plain-"
_LEFT_AFTER_S = 5.0
"""A younger folder may belong to a process that has not locked it yet."""


def check_readable(manifest: Manifest, key_file: str) -> None:
    """Reject a bundle that this device could not decrypt, by its manifest alone.

    Args:
        manifest: The verified manifest.
        key_file: The device's private key, for an encrypted bundle; "" without a key.

    Raises:
        EdgepackError: The device has no key, a wrong key, or no memory to decrypt into.
    """
    if manifest.facts.encryption is not None:
        _open_key(manifest.facts.encryption, key_file)
        _memory_folder()


@contextmanager
def plain_files(
    bundle_folder: Path, variant: Variant, key_file: str, manifest: Manifest | None = None
) -> Iterator[Path]:
    """Yield a folder with the plain files of a variant and the golden samples.

    Args:
        bundle_folder: The bundle, verified; returned unchanged if not encrypted.
        variant: The only variant that is wanted.
        key_file: The device's private key, for an encrypted bundle; "" without a key.
        manifest: The bundle's manifest; None reads the manifest from the folder.

    Raises:
        EdgepackError: The bundle cannot be decrypted here.
    """
    if manifest is None:
        try:
            manifest = decode_manifest((bundle_folder / MANIFEST_FILE).read_bytes())
        except FileNotFoundError:
            yield bundle_folder
            return
    encryption = manifest.facts.encryption
    if encryption is None:
        yield bundle_folder
        return
    content_key = _open_key(encryption, key_file)
    names = [entry.path for entry in (*manifest.facts.files, *variant.facts.files)]
    with _folder_in_memory() as folder:
        try:
            for name in filter(manifest.is_encrypted, names):
                if name != GOLDEN_FILE and is_golden(name) and not (bundle_folder / name).exists():
                    continue  # Nothing but a probe needs a golden picture.
                _decrypt(bundle_folder / name, folder / name, content_key, name)
        except OSError as error:
            raise DeviceError(
                f"the model cannot be decrypted into memory: {error.strerror}",
                found_in=str(folder.parent),
                remedy=f"give it more room, or name another folder in memory: {MEMORY_VARIABLE}",
            ) from error
        yield folder


def remove_stale_plain_files() -> None:
    """Remove files that killed processes of this user left in memory."""
    with contextlib.suppress(DeviceError):
        _sweep(_memory_folder())


def _open_key(encryption: Encryption, key_file: str) -> bytes:
    # Here, since the package takes long to load, and most bundles do not need it.
    from edgepack.bundle.keys import load_private_key
    from edgepack.bundle.recipients import open_content_key

    if not key_file:
        raise DeviceError(
            "the bundle is encrypted, and this device has no key",
            found_in="the agent's settings, decryption.key_file",
            remedy=f"name the device's private key there; for an application, set {KEY_VARIABLE}",
        )
    return open_content_key(encryption, load_private_key(Path(key_file)))


def _decrypt(source: Path, target: Path, content_key: bytes, name: str) -> None:
    from edgepack.bundle.encrypted_files import decrypt_stream

    target.parent.mkdir(parents=True, exist_ok=True)
    with open_regular(source) as encrypted, target.open("xb") as plain:
        decrypt_stream(encrypted, plain.write, content_key, name)


@contextmanager
def _folder_in_memory() -> Iterator[Path]:
    """Yield a locked folder in memory, and delete the folder afterwards."""
    memory = _memory_folder()
    _sweep(memory)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=memory))
    lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _sweep(memory: Path) -> None:
    for folder in memory.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            status = folder.lstat()
            if status.st_uid != os.getuid() or time.time() - status.st_mtime < _LEFT_AFTER_S:
                continue
            lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
            finally:
                os.close(lock)


def _memory_folder() -> Path:
    """Return a folder that is memory and that this user may write to.

    Raises:
        DeviceError: There is no such folder, or the configured folder is on a disk.
    """
    named = os.environ.get(MEMORY_VARIABLE, "")
    mounts = _mounts()
    for path in (named,) if named else _USUAL:
        if _kind_of(Path(path), mounts) in _IN_MEMORY and os.access(path, os.W_OK | os.X_OK):
            return Path(path)
    raise DeviceError(
        "no memory folder for the decrypted model: a disk is not allowed",
        found_in=named or ", ".join(_USUAL),
        remedy=f"set {MEMORY_VARIABLE} to a folder on a tmpfs",
    )


def _kind_of(path: Path, mounts: dict[str, str]) -> str:
    """Return type of the file system that a folder lies on."""
    resolved = path.resolve()
    return next(
        (mounts[str(place)] for place in (resolved, *resolved.parents) if str(place) in mounts), ""
    )


def _mounts() -> dict[str, str]:
    """Return the type of each file system by mount point; empty if the system does not report
    mounts.
    """
    try:
        lines = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return {}
    return {words[1]: words[2] for words in map(str.split, lines) if len(words) > 2}

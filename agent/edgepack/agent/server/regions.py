"""Regions of shared memory that clients registered: read and written by their descriptors.

A named region is never mapped: a client that shrinks a mapped region would kill the server. A read
of a region that shrank returns fewer bytes, which is an error of that request alone. Only memory
whose seals keep every page in place is mapped.

A client may register only shared memory that its user may use: the server has more rights than a
client. Each user has regions of its own, with names of its own.
"""

import contextlib
import fcntl
import mmap
import os
import secrets
import stat
import sys
from pathlib import Path
from typing import NamedTuple

from edgepack.agent.inference_protocol.messages import (
    RegionStatus,
    RegisterRequest,
    TensorParameters,
)
from edgepack.agent.server.blocks import Blocks
from edgepack.agent.server.http_messages import HttpError
from edgepack.agent.state.model_server import F_SEAL_FUTURE_WRITE

FOLDER = Path("/dev/shm")
MAX_REGIONS = 128
"""Regions of a user, at most."""
MAX_USERS = 8
SEALED = "sealed-"
"""First letters of the names of sealed memory."""
_MAX_NAME = 255


class _Region(NamedTuple):
    """Region of a client.

    Attributes:
        status: Its place, as reported to clients.
        file: Its descriptor; negative for sealed memory.
        is_writable: Whether outputs may go there.
        sealed: Content of sealed memory; None for a named region.
    """

    status: RegionStatus
    file: int
    is_writable: bool
    sealed: memoryview | None = None


class Regions:
    """Registered regions; used by the event loop's thread alone.

    Args:
        blocks: Memory of copies.
    """

    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks
        self._regions: dict[int | None, dict[str, _Region]] = {}

    def register(self, name: str, asked: RegisterRequest, uid: int | None) -> None:
        """Register a region.

        Args:
            name: Name for requests.
            asked: Its place.
            uid: User of the client; None if not known.

        Raises:
            HttpError: The place makes no sense, or the client may not use the region.
        """
        self._check_number(name, uid)
        if asked.offset < 0 or asked.byte_size <= 0 or asked.offset + asked.byte_size > sys.maxsize:
            raise HttpError(400, "offset is 0 or more, and byte_size above 0")
        file, is_writable = _open(asked.key, uid)
        if os.fstat(file).st_size < asked.offset + asked.byte_size:
            os.close(file)
            raise HttpError(400, f"shared memory {asked.key[:100]!a} is shorter than stated")
        status = RegionStatus(
            name=name, key=asked.key, offset=asked.offset, byte_size=asked.byte_size
        )
        self._regions.setdefault(uid, {})[name] = _Region(status, file, is_writable)

    def adopt(self, file: int, uid: int | None) -> RegionStatus:
        """Map sealed memory until `unregister`.

        1. Seals keep the memory from shrinking, and pages from being taken out of the memory.
        2. All pages are there: a page that is missing could end the process that reads the page.

        Args:
            file: Descriptor of the memory, which may be closed afterwards.
            uid: User of the client.

        Returns:
            The place of the region, with a name that no other client knows.

        Raises:
            HttpError: The memory is not sealed, is empty or incomplete, or cannot be mapped.
        """
        name = f"{SEALED}{secrets.token_hex(16)}"
        self._check_number(name, uid)
        try:
            seals = fcntl.fcntl(file, fcntl.F_GET_SEALS)
            found = os.fstat(file)
            if not seals & fcntl.F_SEAL_SHRINK or not seals & (
                fcntl.F_SEAL_WRITE | F_SEAL_FUTURE_WRITE
            ):
                raise HttpError(400, "the memory is not sealed against shrinking and writing")
            if not 0 < found.st_size <= found.st_blocks * 512:
                raise HttpError(400, "the memory is empty, or has pages that are not allocated")
            mapped = mmap.mmap(
                file, found.st_size, mmap.MAP_SHARED | mmap.MAP_POPULATE, mmap.PROT_READ
            )
        except (OSError, ValueError) as error:
            raise HttpError(400, f"the file is not sealed memory: {error}") from error
        status = RegionStatus(name=name, key="", offset=0, byte_size=found.st_size)
        self._regions.setdefault(uid, {})[name] = _Region(status, -1, False, memoryview(mapped))
        return status

    def _check_number(self, name: str, uid: int | None) -> None:
        """Check that a user may have a further region of this name.

        Raises:
            HttpError: The name is taken, or there are too many regions.
        """
        own = self._regions.get(uid, {})
        if name in own:
            raise HttpError(400, f"shared memory region {name[:100]!a} is registered already")
        if len(own) >= MAX_REGIONS or (not own and len(self._regions) >= MAX_USERS):
            raise HttpError(
                400, f"at most {MAX_REGIONS} regions of {MAX_USERS} users are registered"
            )

    def unregister(self, name: str, uid: int | None) -> None:
        """Forget a region, or all named regions of the user for ""; ignore an unknown region."""
        own = self._regions.pop(uid, {})
        for found in [name] if name else [one for one in own if own[one].sealed is None]:
            region = own.pop(found, None)
            if region is not None and region.sealed is None:
                os.close(region.file)
        if own:
            self._regions[uid] = own

    def statuses(self, name: str, uid: int | None) -> list[RegionStatus]:
        """Return a region, or all regions of the user for "".

        Raises:
            HttpError: There is no such region.
        """
        if name:
            return [self._find(name, uid).status]
        own = self._regions.get(uid, {}).values()
        return [region.status for region in own if region.sealed is None]

    def read(self, place: TensorParameters, uid: int | None) -> memoryview:
        """Return bytes of a region: a copy, or the place in sealed memory.

        Raises:
            HttpError: There is no such region, or it does not have these bytes.
        """
        name, length = place.shared_memory_region, place.shared_memory_byte_size
        region = self._find(name, uid)
        start = self._place(region, place.shared_memory_offset, length)
        if region.sealed is not None:
            return region.sealed[start : start + length]
        try:
            content = self._blocks.take(length)
            done = 0
            while done < length:
                number = os.preadv(region.file, [content[done:]], start + done)
                if not number:
                    raise HttpError(
                        400, f"shared memory region {name[:100]!a} is shorter than registered"
                    )
                done += number
        except (OSError, MemoryError) as error:
            raise HttpError(400, f"shared memory region {name[:100]!a}: {error}") from error
        return content

    def write(self, place: TensorParameters, content: memoryview, uid: int | None) -> None:
        """Write an output to a region.

        Raises:
            HttpError: There is no such region, it may not be written, or has no room.
        """
        name, limit = place.shared_memory_region, place.shared_memory_byte_size
        region = self._find(name, uid)
        if not region.is_writable:
            raise HttpError(400, f"shared memory region {name[:100]!a} may only be read")
        if len(content) > limit:
            raise HttpError(
                400, f"an output has {len(content)} bytes, its shared memory {max(limit, 0)}"
            )
        start = self._place(region, place.shared_memory_offset, len(content))
        try:
            if os.fstat(region.file).st_size < start + len(content):  # Never make it longer.
                raise HttpError(
                    400, f"shared memory region {name[:100]!a} is shorter than registered"
                )
            done = 0
            while done < len(content):
                done += os.pwrite(region.file, content[done:], start + done)
        except OSError as error:
            raise HttpError(400, f"shared memory region {name[:100]!a}: {error}") from error

    def _find(self, name: str, uid: int | None) -> _Region:
        try:
            return self._regions[uid][name]
        except KeyError:
            raise HttpError(400, f"no shared memory region {name[:100]!a} is registered") from None

    @staticmethod
    def _place(region: _Region, offset: int, length: int) -> int:
        """Return where bytes begin in the file.

        Raises:
            HttpError: The bytes are not in the region.
        """
        if offset < 0 or length < 0 or offset + length > region.status.byte_size:
            raise HttpError(
                400,
                f"shared memory region {region.status.name[:100]!a} has "
                f"{region.status.byte_size} bytes, needed are {offset + length}",
            )
        return region.status.offset + offset


def _open(key: str, uid: int | None) -> tuple[int, bool]:
    """Open a POSIX shared memory object that a user may use.

    Returns:
        The descriptor, and whether the object may be written.

    Raises:
        HttpError: There is no such object, or the user may not use the object.
    """
    name = key.removeprefix("/")
    if not name or "/" in name or "\0" in name or name in (".", "..") or len(name) > _MAX_NAME:
        raise HttpError(400, f"{key[:100]!a} is not a key of shared memory")
    flags = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        found = os.open(FOLDER / name, os.O_PATH | flags)
    except (OSError, ValueError) as error:
        raise HttpError(400, f"there is not shared memory {key[:100]!a}") from error
    try:
        status = os.fstat(found)
        if not stat.S_ISREG(status.st_mode):
            raise HttpError(400, f"{key[:100]!a} is not shared memory")
        is_owner = uid is not None and uid in (0, status.st_uid)
        may_read = is_owner or bool(status.st_mode & stat.S_IROTH)
        may_write = is_owner or bool(status.st_mode & stat.S_IWOTH)
        if not may_read:
            raise HttpError(403, f"shared memory {key[:100]!a} belongs to another user")
        if may_write:
            with contextlib.suppress(OSError):
                return os.open(f"/proc/self/fd/{found}", os.O_RDWR | os.O_CLOEXEC), True
        try:
            return os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_CLOEXEC), False
        except OSError as error:
            raise HttpError(
                403,
                f"the server's user may not read shared memory {key[:100]!a}: chmod the object",
            ) from error
    finally:
        os.close(found)

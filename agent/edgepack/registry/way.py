"""Access to a remote bundle, and the check for free space."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from edgepack.errors import TransferError
from edgepack.web.deadline import DEFAULT_LIMITS, WaitLimits

if TYPE_CHECKING:
    from edgepack.web.http import WebAccess

RESERVE_BYTES = 64 * 1024 * 1024
"""Free disk that a download leaves."""
Progress = Callable[[int, int], object]
"""Is told bytes that are done, and all bytes."""


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """Access settings.

    Attributes:
        ca_file: PEM of the authorities to trust; "" trusts the system's.
        http_unsafe: Uses http for a registry: anyone in between reads and alters all content.
        limits: Of the waits on the other side, over the whole transfer.
    """

    ca_file: str = ""
    http_unsafe: bool = False
    limits: WaitLimits = DEFAULT_LIMITS

    @property
    def access(self) -> "WebAccess":
        """Settings of a client of HTTP."""
        # Imported where it is needed: urllib3 takes 0.06 s.
        from edgepack.web.http import WebAccess

        return WebAccess(ca_file=self.ca_file, limits=self.limits)


DIRECTLY = Way()


def check_room(folder: Path, wanted_bytes: int) -> None:
    """Reject content larger than the free space.

    Raises:
        TransferError: The disk has less.
    """
    free_bytes = shutil.disk_usage(folder).free
    if wanted_bytes + RESERVE_BYTES > free_bytes:
        raise TransferError(
            f"the bundle has {wanted_bytes} bytes, and {free_bytes} are free",
            found_in=str(folder),
            remedy="make room on the disk",
        )

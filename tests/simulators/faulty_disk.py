"""A disk that fails for a real process: a C library, preloaded, answers its calls with an error."""

import errno
import mmap
import struct
import subprocess
from pathlib import Path

from tests.simulators.programs import require

SOURCE = Path(__file__).with_suffix(".c")
_FORM = struct.Struct("=6q")
_READS, _WRITES = 1, 2
KINDS = {errno.EIO: _READS | _WRITES, errno.ENOSPC: _WRITES, errno.EROFS: _WRITES}
FOREVER = 2**62


def build_library(folder: Path) -> Path:
    """Compile the library; skip the test without a C compiler, and fail in the full run."""
    require("gcc")
    library = folder / "faulty_disk.so"
    command = ["gcc", "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-ldl"]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return library


class FaultyDisk:
    """Current faults, shared with the process.

    Args:
        control: A file, which is made.
        library: Result of `build_library`.
        folder: Folder with failing calls.
    """

    def __init__(self, control: Path, library: Path | None, folder: Path) -> None:
        if not control.exists():
            control.write_bytes(bytes(_FORM.size))
        self._library, self._control, self._folder = library, control, folder
        with control.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _FORM.size)

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of the process."""
        return {
            "LD_PRELOAD": str(self._library),
            "FAULTY_DISK": str(self._control),
            "FAULTY_FOLDER": str(self._folder),
        }

    @property
    def calls(self) -> int:
        """Calls since `fail` or `count` that could have failed."""
        return int(_FORM.unpack(self._map[:])[4])

    @property
    def failed(self) -> int:
        """Calls that failed since then."""
        return int(_FORM.unpack(self._map[:])[5])

    def count(self, error: int) -> None:
        """Count the calls that an error could hit, and fail none."""
        self.fail(error, first=FOREVER)

    def fail(self, error: int, *, first: int, count: int = FOREVER) -> None:
        """Fail calls from a number on, counted from now."""
        self._map[:] = _FORM.pack(error, first, count, KINDS[error], 0, 0)

    def resume(self, error: int, *, calls: int, failed: int) -> None:
        """Fail every call again, after `works`."""
        self._map[:] = _FORM.pack(error, 0, FOREVER, KINDS[error], calls, failed)

    def works(self) -> None:
        """Fail nothing from now on; `calls` and `failed` stay."""
        self._map[:8] = bytes(8)

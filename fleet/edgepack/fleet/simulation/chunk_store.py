"""The chunks that the simulated devices of a process have checked, once for all of them.

A real device reads what it has out of its slot to get a chunk out of a coded message. Here each
device remembers only which chunks it has, and reads those from files that all share.
"""

import os
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

MOST_BYTES = 4_000_000_000
"""Of a file that would make it more no chunk is kept, and its devices take no coded messages."""


class StoredFile:
    """The chunks of one file; each was checked before it was written.

    Args:
        path: Where they are kept; the file is gone after `close`.
        sizes: Lengths of the file's chunks, bytes.
    """

    def __init__(self, path: Path, sizes: Sequence[int]) -> None:
        self.sizes = sizes
        self.size_bytes = sum(sizes)
        self._starts = tuple(accumulate(sizes, initial=0))
        self._held: set[int] = set()
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        path.unlink()

    def put(self, index: int, content: bytes) -> None:
        """Keep a chunk that is right."""
        if index not in self._held:
            os.pwrite(self._descriptor, content, self._starts[index])
            self._held.add(index)

    def read(self, index: int) -> bytes:
        """Return one that was put."""
        return os.pread(self._descriptor, self.sizes[index], self._starts[index])

    def close(self) -> None:
        """Release all files."""
        os.close(self._descriptor)


class ChunkStore:
    """Files by digest, each as long as a device wants it.

    Args:
        folder: For the files; exists.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, StoredFile] = {}
        self._users: dict[str, int] = {}

    def open(self, sha256: str, sizes: Sequence[int]) -> StoredFile | None:
        """Return the file for one more device; None when there is no room for it."""
        file = self._files.get(sha256)
        if file is None:
            used = sum(one.size_bytes for one in self._files.values())
            if used + sum(sizes) > MOST_BYTES:
                return None
            file = self._files[sha256] = StoredFile(self._folder / sha256, sizes)
        self._users[sha256] = self._users.get(sha256, 0) + 1
        return file

    def close(self, sha256: str) -> None:
        """Release a file that the device no longer needs."""
        self._users[sha256] -= 1
        if not self._users[sha256]:
            del self._users[sha256]
            self._files.pop(sha256).close()

"""The verified chunks of the simulated devices of a process, stored once for all.

A real device reads its slot to recover a chunk from a coded message. Here each device stores only
its set of chunks, and reads the chunks from shared files.
"""

import os
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

MOST_BYTES = 4_000_000_000
"""Of a file that would make it more no chunk is kept, and its devices take no coded messages."""


class StoredFile:
    """The chunks of a file; each chunk was verified before the write.

    Args:
        path: Path of the file, which is deleted after `close`.
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
        """Return a stored chunk."""
        return os.pread(self._descriptor, self.sizes[index], self._starts[index])

    def close(self) -> None:
        """Release all files."""
        os.close(self._descriptor)


class ChunkStore:
    """Files by digest, each as long as a device needs the file.

    Args:
        folder: For the files; exists.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, StoredFile] = {}
        self._users: dict[str, int] = {}

    def open(self, sha256: str, sizes: Sequence[int]) -> StoredFile | None:
        """Return the file for a further device; None without room."""
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

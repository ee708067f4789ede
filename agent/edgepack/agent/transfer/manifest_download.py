"""Fetching a bundle's manifest and signature, in memory, before any of its files."""

import hashlib
from collections.abc import Iterable

from edgepack.agent.transfer.chunk_status import ChunkOutcome, Content, MissingChunks
from edgepack.bundle.chunks import fixed_chunks
from edgepack.wire.orders import FileRef


class ManifestDownload:
    """Manifest and signature, fetched whole before anything is known of their chunks.

    The files are small, so both are held in memory, and each is checked when complete.

    Args:
        refs: Files to fetch, with checked sizes.
    """

    def __init__(self, refs: Iterable[FileRef]) -> None:
        self._refs = {ref.sha256: ref for ref in refs}
        self._chunks: dict[str, dict[int, Content]] = {sha256: {} for sha256 in self._refs}
        self._contents: dict[str, bytes] = {}

    def give(self, ref: FileRef, content: bytes | None) -> None:
        """Offer a whole file of the device; a file with the right digest is accepted."""
        if content is not None and hashlib.sha256(content).hexdigest() == ref.sha256:
            self._contents[ref.sha256] = content

    def accept(self, sha256: str, index: int, content: Content) -> ChunkOutcome:
        """Accept a chunk; if the last chunk completes a wrong file, drop all chunks."""
        ref = self._refs.get(sha256)
        if ref is None:
            return "unwanted"
        starts = fixed_chunks(ref.size_bytes)
        if index >= len(starts):
            return "unwanted"
        chunks = self._chunks[sha256]
        if sha256 in self._contents or index in chunks:
            return "duplicate"
        end = starts[index + 1] if index + 1 < len(starts) else ref.size_bytes
        if len(content) != end - starts[index]:
            return "bad"
        chunks[index] = content
        if len(chunks) < len(starts):
            return "new"
        whole = b"".join(chunks[i] for i in range(len(starts)))
        if hashlib.sha256(whole).hexdigest() != sha256:
            chunks.clear()
            return "bad"
        self._contents[sha256] = whole
        return "new"

    def content(self, ref: FileRef) -> bytes:
        """Return the bytes of a file that is complete; raises `KeyError` before."""
        return self._contents[ref.sha256]

    def lacks(self, sha256: str) -> bool:
        """Return True if chunks of that file are missing."""
        return sha256 not in self._contents

    @property
    def is_complete(self) -> bool:
        """True if nothing is missing."""
        return len(self._contents) == len(self._refs)

    def missing(self) -> tuple[MissingChunks, ...]:
        """Return the missing chunks; empty if complete."""
        found = []
        for sha256, ref in self._refs.items():
            if sha256 in self._contents:
                continue
            count = len(fixed_chunks(ref.size_bytes))
            lacking = tuple(i for i in range(count) if i not in self._chunks[sha256])
            found.append(MissingChunks(sha256=sha256, chunk_count=count, chunks=lacking))
        return tuple(found)

"""The folder of a fleet's metadata: every root, and the newest of all else."""

from pathlib import Path
from typing import Any

from tuf.api.exceptions import RepositoryError
from tuf.api.metadata import Metadata, Root, Snapshot, Targets, Timestamp

from edgepack.durable import write_file
from edgepack.errors import FleetError
from edgepack.trust.roles import (
    MAX_METADATA_BYTES,
    ROOT,
    SNAPSHOT,
    TARGETS,
    TIMESTAMP,
    file_name,
    is_publisher_role,
    read_file_name,
)

KEPT_VERSIONS = 2
"""Of what has versions in its name: a client in the middle of its work still finds the last one."""


class MetadataFiles:
    """Reads and writes the files.

    Args:
        folder: Folder of the files; may be missing before the first write.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._newest = folder / file_name(TIMESTAMP)

    @property
    def are_there(self) -> bool:
        """True if there is metadata at all: the timestamp is written last."""
        return self._newest.is_file()

    def stamp(self) -> int:
        """Change whenever somebody has written."""
        return self._newest.stat().st_mtime_ns

    def content(self, name: str) -> bytes | None:
        """Return a stored file by its name for clients; None if missing."""
        if read_file_name(name) is None:
            return None
        try:
            return (self.folder / name).read_bytes()
        except OSError:
            return None

    def size(self, role: str, version: int) -> int:
        """Return bytes of a file; 0 when there is none."""
        return len(self.content(file_name(role, version)) or b"")

    def versions(self, role: str) -> tuple[int, ...]:
        """Return the versions of a role that are there, oldest first."""
        found = (read_file_name(path.name) for path in self.folder.glob(f"*.{role}.json"))
        return tuple(sorted(one[1] for one in found if one and one[0] == role and one[1]))

    def publishers(self) -> tuple[str, ...]:
        """Return the publishers' roles that have metadata."""
        found = (read_file_name(path.name) for path in self.folder.glob("*.json"))
        return tuple(sorted({one[0] for one in found if one and is_publisher_role(one[0])}))

    def root(self) -> Metadata[Root]:
        """Return the newest root."""
        found: Metadata[Root] = self._read(file_name(ROOT, self.versions(ROOT)[-1]))
        return found

    def timestamp(self) -> Metadata[Timestamp]:
        """Return the timestamp."""
        found: Metadata[Timestamp] = self._read(file_name(TIMESTAMP))
        return found

    def snapshot(self, version: int) -> Metadata[Snapshot]:
        """Return a snapshot."""
        found: Metadata[Snapshot] = self._read(file_name(SNAPSHOT, version))
        return found

    def targets(self, role: str, version: int) -> Metadata[Targets]:
        """Return the targets of the targets role or of a publisher."""
        found: Metadata[Targets] = self._read(file_name(role, version))
        return found

    def save(self, role: str, content: bytes, version: int | None) -> None:
        """Write the newest metadata of a role, and remove old versions.

        Raises:
            FleetError: The metadata is too long for a message.
            OSError: The file cannot be written.
        """
        if len(content) > MAX_METADATA_BYTES:
            raise FleetError(
                f"the metadata of '{role}' would have {len(content)} bytes, "
                f"{MAX_METADATA_BYTES} is the most that one message carries",
                remedy="edgepack fleet releases prune withdraws old releases that nothing needs; "
                "another publisher can release some of the models (edgepack fleet keys publisher)",
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        write_file(self.folder / file_name(role, version), content)
        if role != ROOT and version is not None:
            for old in self.versions(role)[:-KEPT_VERSIONS]:
                (self.folder / file_name(role, old)).unlink(missing_ok=True)

    def _read(self, name: str) -> Any:
        path = self.folder / name
        try:
            return Metadata.from_bytes(path.read_bytes())
        except (OSError, RepositoryError) as error:
            raise FleetError(
                f"the fleet's metadata cannot be read: {error}",
                found_in=str(path),
                remedy=f"restore {TARGETS} and the files next to it from a backup of the folder",
            ) from error

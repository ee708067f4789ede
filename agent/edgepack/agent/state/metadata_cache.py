"""Cache of the TUF metadata that a device accepted, separate from the journals.

<state_dir>/trust/<file> each as received, with its signatures

Files here are verified like received files: damage costs a transfer, and never keeps the agent from
starting.
"""

import logging
from pathlib import Path

from edgepack.agent.state.state_file import put_aside, read_regular
from edgepack.durable import is_disk_fault, write_file

log = logging.getLogger(__name__)

TRUST_FOLDER = "trust"
_MAX_BYTES = 512 * 1024


class MetadataCache:
    """The folder.

    Args:
        state_dir: The agent's state folder; must exist.
    """

    def __init__(self, state_dir: Path) -> None:
        self._folder = state_dir / TRUST_FOLDER

    def load(self, name: str) -> bytes | None:
        """Return a file; None if missing or damaged, so that the file is fetched again.

        Raises:
            OSError: The disk cannot be read now. Accepted metadata must not be forgotten because of
                a read error, or an older version would be accepted.
        """
        try:
            return read_regular(self._folder / name, limit_bytes=_MAX_BYTES)
        except OSError as error:
            if is_disk_fault(error):
                raise
            log.warning("%s cannot be read: %s", self._folder / name, error)
            return None

    def save(self, name: str, content: bytes) -> None:
        """Keep a file.

        Raises:
            OSError: The file cannot be written.
        """
        if not self._folder.is_dir() and self._folder.exists():
            put_aside(self._folder)
        self._folder.mkdir(exist_ok=True)
        path = self._folder / name
        if path.is_dir() and not path.is_symlink():
            put_aside(path)
        write_file(path, content)

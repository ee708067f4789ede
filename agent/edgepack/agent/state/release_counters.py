"""The highest release of every model that was ever committed here, apart from any journal.

`releases.json` in the state folder outlives journals, models and slots: a damaged, newer or
removed journal does not let an older release in.
"""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from edgepack.agent.state.state_file import StateFile, Write
from edgepack.durable import write_file
from edgepack.errors import DeviceError
from edgepack.versions import Format, Version

COUNTERS_FILE = "releases.json"


class Counters(msgspec.Struct, frozen=True, kw_only=True):
    """The file's content."""

    highest: dict[str, int]


COUNTERS = Format("list of release counters", Counters, Version(1, 0))


class ReleaseCounters:
    """The counters of a device.

    Args:
        state_dir: The agent's state folder; must exist.
        known: Releases that were committed, by model, as far as pointers say: the least that holds
            when the file is missing or damaged.
        write: Writes a small file durably.

    Raises:
        OSError: The disk cannot be read now.
    """

    def __init__(
        self, state_dir: Path, known: Mapping[str, int], *, write: Write = write_file
    ) -> None:
        self._file = StateFile(state_dir / COUNTERS_FILE, COUNTERS, write=write)
        found = self._file.load()
        highest = dict(found.highest) if found else {}
        self._highest = highest | {
            name: max(release, highest.get(name, 0)) for name, release in known.items()
        }

    @property
    def trouble(self) -> str:
        """Problem of the file, as a sentence; "" without a problem."""
        return self._file.trouble

    def highest(self, name: str) -> int:
        """Return the highest release of a model that was committed here; 0 when none was.

        Raises:
            DeviceError: A newer edgepack wrote the file, so nobody here can tell.
        """
        if self._file.is_sealed:
            raise DeviceError(self._file.trouble, found_in=str(self._file.path))
        return self._highest.get(name, 0)

    def raise_to(self, name: str, release: int) -> None:
        """Note a release that is committed now; a counter never go down.

        Raises:
            OSError: The counter cannot be written.
        """
        if release > self._highest.get(name, 0) or not self._file.path.exists():
            highest = self._highest | {name: max(release, self._highest.get(name, 0))}
            self._file.save(Counters(highest=highest))
            self._highest = highest

"""Several controllers of one fleet, as processes that can be killed."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.integration.fleet.conftest import FleetProcess
from tests.integration.fleet.postgresql import PostgreSQL
from tests.simulators.waiting import wait_until


class ControllerProcesses:
    """Controllers on one folder, one database and one broker; each is known by its name."""

    def __init__(self, data: Path, *arguments: str) -> None:
        self._data, self._arguments = data, arguments
        self._started = 0
        self.fleets: dict[str, FleetProcess] = {}

    def start(self, *arguments: str) -> str:
        """Start another controller and return its name."""
        fleet = FleetProcess(self._data, "--lease", "1", *self._arguments, *arguments)
        fleet.log = self._data.parent / f"serve-{self._started}.log"
        self._started += 1
        fleet.start()
        name = fleet.info().controller
        self.fleets[name] = fleet
        return name

    @property
    def leader(self) -> str:
        """The live controller that leads; waits until one does."""
        found = ""

        def leads() -> bool:
            nonlocal found
            found = next(iter(self.fleets.values())).info().leader
            return found in self.fleets

        wait_until(leads, "somebody leads")
        return found

    def kill(self, name: str) -> None:
        self.fleets.pop(name).kill()

    def stop(self) -> None:
        for fleet in self.fleets.values():
            fleet.stop()


@contextmanager
def controllers(
    data: Path, postgresql: PostgreSQL, broker: str, public_key: Path
) -> Iterator[ControllerProcesses]:
    """Yield controllers, none at first; end the started ones afterwards.

    Args:
        data: Their folder.
        postgresql: Where their database is made.
        broker: URL of their broker.
        public_key: Of whoever signs their bundles.
    """
    place = ("--database", postgresql.empty_database(), "--broker", broker)
    processes = ControllerProcesses(data, *place, "--trust", str(public_key))
    yield processes
    processes.stop()

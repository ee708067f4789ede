"""Several controllers of one fleet, as processes that can be killed."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edgepack.errors import FleetError
from tests.integration.fleet.conftest import FleetProcess, wait_until
from tests.integration.fleet.postgresql import PostgreSQL
from tests.simulators.children import has_ended
from tests.simulators.controllers import Controllers


class ControllerProcesses:
    """Controllers on one folder, one database and one broker; each is known by its name."""

    def __init__(self, data: Path, fork_server: Controllers, *arguments: str) -> None:
        self._data, self._controllers, self._arguments = data, fork_server, arguments
        self.pids: dict[str, int] = {}
        self.fleets: dict[str, FleetProcess] = {}

    def start(self, *arguments: str) -> str:
        """Starts another one; its name."""
        fleet = FleetProcess(self._data)
        command = ("fleet", "serve", "-v", "--data", str(self._data), "--port", str(fleet.port))
        log = self._data.parent / f"serve-{len(self.fleets)}-{fleet.port}.log"
        pid = self._controllers.start(log, (*command, "--lease", "1", *self._arguments, *arguments))

        def answers() -> bool:
            assert not has_ended_already(pid), log.read_text()
            try:
                return fleet.info().is_connected
            except FleetError:
                return False

        wait_until(answers, "a controller answers")
        name = fleet.info().controller
        self.pids[name], self.fleets[name] = pid, fleet
        return name

    @property
    def leader(self) -> str:
        """The one that leads, once one of those that live does."""
        found = ""

        def leads() -> bool:
            nonlocal found
            found = next(iter(self.fleets.values())).info().leader
            return found in self.fleets

        wait_until(leads, "somebody leads")
        return found

    def kill(self, name: str) -> None:
        os.kill(self.pids[name], signal.SIGKILL)
        assert has_ended(self.pids.pop(name))
        del self.fleets[name]

    def stop(self) -> None:
        for pid in self.pids.values():
            os.kill(pid, signal.SIGTERM)
        for pid in self.pids.values():
            wait_until(lambda pid=pid: has_ended(pid), "it ends")  # type: ignore[misc]


def has_ended_already(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


@contextmanager
def controllers(
    data: Path, postgresql: PostgreSQL, broker: str, public_key: Path
) -> Iterator[ControllerProcesses]:
    """None at first; those that were started are ended afterwards.

    Args:
        data: Their folder.
        postgresql: Where their database is made.
        broker: URL of their broker.
        public_key: Of whoever signs their bundles.
    """
    fork_server = Controllers()
    place = ("--database", postgresql.empty_database(), "--broker", broker)
    processes = ControllerProcesses(data, fork_server, *place, "--trust", str(public_key))
    yield processes
    processes.stop()
    fork_server.close()

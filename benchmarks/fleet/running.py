"""The processes of a run: a mosquitto, a controller, and simulated devices, all real."""

import os
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Self
from urllib.request import HTTPCookieProcessor, build_opener

import msgspec
from msgspec import Raw

from edgepack.errors import FleetError
from edgepack.fleet.broker.settings.write import queue_settings
from edgepack.fleet.client.connection import connect
from edgepack.fleet.client.fleet_client import FleetClient

MOSQUITTO = "/usr/sbin/mosquitto"
DEVICES_A_PROCESS = 2500
"""One process drives so many simulated devices at most."""
PATIENCE_S = 1800.0


Process = subprocess.Popen[bytes]


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """Resources used by a process.

    Attributes:
        cpu_s: Processor time since its start, seconds.
        resident_bytes: Current memory.
        peak_bytes: Peak memory.
    """

    cpu_s: float
    resident_bytes: int
    peak_bytes: int


class RunningFleet:
    """A fleet on this machine, gone when the block ends.

    Args:
        folder: For all files.
        trust: Trusted public key for bundles.
        arguments: Further arguments of `edgepack fleet serve`.

    Attributes:
        broker_port: Where mosquitto listens.
        broker: The broker's process.
    """

    broker: Process

    def __init__(self, folder: Path, trust: Path, arguments: tuple[str, ...] = ()) -> None:
        self._folder, self._data = folder, folder / "fleet"
        self._trust, self._arguments = trust, arguments
        self._stack = ExitStack()
        self._url = f"http://127.0.0.1:{free_port()}"
        self.broker_port = 0

    def __enter__(self) -> Self:
        self.broker_port = broker_port = free_port()
        config = self._folder / "mosquitto.conf"
        config.write_text(
            f"listener {broker_port} 127.0.0.1\nallow_anonymous true\n{queue_settings()}"
        )
        self.broker = self._start(MOSQUITTO, "-c", str(config))
        wait_until(lambda: listens(broker_port), "mosquitto listens")
        broker = f"mqtt://127.0.0.1:{broker_port}"
        self._server = self._edgepack(
            *("fleet", "serve", "--data", str(self._data), "--port", self._url.rpartition(":")[2]),
            *("--broker", broker, "--trust", str(self._trust), *self._arguments),
        )
        wait_until(self._is_up, "the controller answers")
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def client(self) -> FleetClient:
        """Asks the controller."""
        return FleetClient(self._url, data=self._data)

    def get(self, path: str) -> object:
        """Request a page of any path from the controller."""
        return connect(self._url, self._data, None).get(path, Raw)

    def browse(self) -> Callable[[str], object]:
        """Log in to the dashboard; return a function that reads a page."""
        opener = build_opener(HTTPCookieProcessor())

        def read(path: str) -> object:
            with opener.open(path if "://" in path else self._url + path, timeout=60) as answer:
                return answer.read()

        read(self.client.login_link().url)
        return read

    def simulate(
        self, count: int, group: str, *further: str, prefix: str = "sim", nice: int = 0
    ) -> None:
        """Enrol devices, and return when all devices are online.

        Args:
            count: How many.
            group: Their group.
            further: Arguments of `edgepack simulate`.
            prefix: Of their names.
            nice: Nice value of the devices' processes, 0..19.
        """
        before = self.client.info().online
        place = ("--data", str(self._data), "--url", self._url)
        for first in range(0, count, DEVICES_A_PROCESS):
            part = min(DEVICES_A_PROCESS, count - first)
            names = ("--devices", str(part), "--prefix", f"{prefix}{first}", "--group", group)
            self._edgepack("simulate", *names, *further, *place, before=("nice", f"-n{nice}"))
        wait_until(
            lambda: self.client.info().online >= before + count, "the devices are online", 1.0
        )

    def run_agent(self, config: Path, python: Path | None = None) -> Process:
        """Start a real agent with its state next to its settings, in an environment."""
        lines = config.read_text().splitlines()
        config.write_text(
            "\n".join(
                'state_dir = "state"' if line.startswith("state_dir") else line for line in lines
            )
        )
        return self._start(
            *(str(python or sys.executable), "-m", "edgepack.agent.cli", "run"),
            *("--config", str(config)),
        )

    def cost(self, of: Process | None = None) -> Cost:
        """Return the resources used so far by a process, or else the controller."""
        process = Path("/proc", str((of or self._server).pid))
        ticks = process.joinpath("stat").read_text().rpartition(")")[2].split()[11:13]
        lines = process.joinpath("status").read_text().splitlines()
        memory = {key: value for key, _, value in (line.partition(":") for line in lines)}
        return Cost(
            cpu_s=sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK"),
            resident_bytes=int(memory["VmRSS"].split()[0]) * 1024,
            peak_bytes=int(memory["VmHWM"].split()[0]) * 1024,
        )

    def ask(self, query: str) -> int:
        """Return a number from the database, at no cost for the controller."""
        path = self._data / "fleet.db"
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=60)) as database:
            (number,) = database.execute(query).fetchone()
        return int(number)

    def _is_up(self) -> bool:
        try:
            return self.client.info().is_connected
        except FleetError:
            return False

    def _edgepack(self, *words: str, before: tuple[str, ...] = ()) -> Process:
        return self._start(*before, sys.executable, "-m", "edgepack.cli", *words)

    def _start(self, *command: str) -> Process:
        log = self._stack.enter_context((self._folder / "log").open("ab"))
        process = subprocess.Popen(command, stdout=log, stderr=log)
        self._stack.callback(process.wait, 30)
        self._stack.callback(process.terminate)
        return process


def wait_until(is_so: Callable[[], bool], what: str, every_s: float = 0.2) -> None:
    """Wait for a condition.

    Raises:
        TimeoutError: The condition did not hold within `PATIENCE_S`.
    """
    until = time.monotonic() + PATIENCE_S
    while not is_so():
        if time.monotonic() > until:
            raise TimeoutError(f"waited {PATIENCE_S:g} s in vain until {what}")
        time.sleep(every_s)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 0.2).close()
    except OSError:
        return False
    return True

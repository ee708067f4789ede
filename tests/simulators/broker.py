"""A real mosquitto on a free loopback port, that can be stopped, killed and started again."""

import getpass
import shutil
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from tests.simulators.ports import free_port
from tests.simulators.waiting import PATIENCE_S

MOSQUITTO = shutil.which("mosquitto") or "/usr/sbin/mosquitto"


def is_installed() -> bool:
    return Path(MOSQUITTO).exists()


class Broker:
    """Starts at once.

    Args:
        folder: Holds its settings and log.
        settings: Further lines of its settings, instead of letting everybody in.
        listener: Lines of the listener, for example TLS files.
        port: Port to listen on; 0 selects a free port.
    """

    def __init__(
        self,
        folder: Path,
        *,
        settings: Sequence[str] = ("allow_anonymous true",),
        listener: Sequence[str] = (),
        port: int = 0,
    ) -> None:
        self.port = port or free_port()
        self._folder = folder
        self._settings = folder / "mosquitto.conf"
        lines = [f"listener {self.port} 127.0.0.1", *listener, *settings, "persistence false"]
        lines.append(f"user {getpass.getuser()}")  # Else root's broker cannot read our files.
        self._settings.write_text("\n".join(lines) + "\n")
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"mqtt://127.0.0.1:{self.port}"

    def __enter__(self) -> "Broker":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        log = (self._folder / "mosquitto.log").open("ab")
        with log:
            self._process = subprocess.Popen(
                [MOSQUITTO, "-c", str(self._settings)], stdout=log, stderr=log
            )
        until = time.monotonic() + PATIENCE_S
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            if self._process.poll() is not None or time.monotonic() > until:
                said = (self._folder / "mosquitto.log").read_text()
                raise RuntimeError(f"mosquitto did not start: {said}")
            time.sleep(0.02)

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(PATIENCE_S)
            self._process = None

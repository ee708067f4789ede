"""A real agent as a process, that can be stopped politely or killed."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from edgepack.agent.state.pointer import ActivePointer, read_pointer
from edgepack.agent.update.journal import Journal, read_journal
from tests.simulators import warm_programs
from tests.simulators.users import User
from tests.simulators.waiting import PATIENCE_S, wait_until

DEVICE = "cam-1"


class Device:
    """A device with its settings in `folder`, its state in `folder/state`.

    Args:
        folder: Is made.
        broker_url: The broker.
        key: PEM file of the trusted public key.
        broker_lines: Further lines of the section [broker].
        hooks: The device's hook folder.
        memory_bytes: Memory limit of the models together; 0 sets no limit.
        decryption_key: PEM file of the private key that opens encrypted bundles.
        name: Its id.
        user: User of the agent; None is the test's user.
        groups: Further groups of that user.
        sources: URLs of web servers that have bundles.
        sources_ca: PEM of the sources' authority; None is the system's.
    """

    def __init__(
        self,
        folder: Path,
        broker_url: str,
        key: Path,
        *,
        broker_lines: tuple[str, ...] = (),
        hooks: Path | None = None,
        memory_bytes: int = 0,
        decryption_key: Path | None = None,
        name: str = DEVICE,
        user: User | None = None,
        groups: tuple[int, ...] = (),
        sources: tuple[str, ...] = (),
        sources_ca: Path | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.state_dir = folder / "state"
        self.log = folder / "agent.log"
        self.config = folder / "agent.toml"
        lines = [
            f'device = "{name}"',
            'state_dir = "state"',
            "[broker]",
            f'url = "{broker_url}"',
            "keepalive_s = 5",
            *broker_lines,
            "[trust]",
            f'keys = ["{key}"]',
            "[probe]",
            "runs = 1",
            "timeout_s = 400",
            "[limits]",
            "disk_reserve_bytes = 1000000",
            f"memory_bytes = {memory_bytes}",
            "max_restarts = 1000",
            "[telemetry]",
            "interval_s = 0.5",
            *((f'[decryption]\nkey_file = "{decryption_key}"',) if decryption_key else ()),
            *(
                f'[[transfer.sources]]\nurl = "{url}"\nca_file = "{sources_ca or ""}"'
                for url in sources
            ),
            *((f'[hooks]\nfolder = "{hooks}"',) if hooks else ()),
        ]
        self.config.write_text("\n".join(lines) + "\n")
        self._user, self._groups = user, groups
        self.python: Path | str = sys.executable
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, environment: Mapping[str, str] = {}) -> None:
        marked = {"OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(self.state_dir)}
        environment = os.environ | marked | dict(environment)
        command = ["-m", "edgepack.agent.cli", "run", "--config", str(self.config)]
        with self.log.open("ab") as log:
            if self._user is not None:
                self._process = self._user.popen(
                    [self._user.python, *command], groups=self._groups, stdout=log, stderr=log
                )
                return
            self._process = warm_programs.Popen(
                [self.python, *command],
                stdout=log,
                stderr=log,
                env=environment,
            )

    def kill(self) -> None:
        """Kill by SIGKILL: the agent cannot react."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(PATIENCE_S)

    def stop(self) -> int:
        """Stop by SIGTERM; return the exit code."""
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(PATIENCE_S)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the agent alone."""
        assert self._process is not None
        self._process.send_signal(number)

    def wait(self) -> int:
        """Wait until the agent ends by itself; return the exit code."""
        assert self._process is not None
        return self._process.wait(PATIENCE_S)

    def processes(self) -> list[int]:
        """Return the live agent and its children, found by the folder in their environments."""
        mark = str(self.state_dir).encode()
        found = [self._process.pid] if self._process and self._process.poll() is None else []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if mark in path.read_bytes() and (pid := int(path.parent.name)) not in found:
                    found.append(pid)
        return found

    def pointer(self, name: str = "tiny") -> ActivePointer | None:
        return read_pointer(self.state_dir, name)

    def journal(self, name: str = "tiny") -> Journal | None:
        return read_journal(self.state_dir, name)

    def said(self) -> str:
        return self.log.read_text() if self.log.exists() else ""


def wait_for_line(device: Device, text: str) -> str:
    wait_until(lambda: text in device.said(), lambda: f"{text!r}:\n{device.said()}")
    return next(line for line in device.said().splitlines() if text in line)


@contextlib.contextmanager
def running(device: Device) -> Iterator[None]:
    device.start()
    try:
        yield
    finally:
        if device.is_running:
            device.kill()


@contextlib.contextmanager
def serving_device(
    folder: Path, broker_url: str, public_key: Path, settings: str
) -> Iterator[Device]:
    """Yield a running device with further settings; stop the device in order at the end."""
    device = Device(folder, broker_url, public_key)
    with device.config.open("a") as config:
        config.write(settings)
    device.start()
    yield device
    if device.is_running:
        device.stop()

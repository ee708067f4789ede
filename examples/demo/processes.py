"""The processes of the demo: a fleet server, agents, applications, and commands."""

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

GROUP = "cameras"
SOAK_S = 3.0
PATIENCE_S = 90.0


class DemoError(Exception):
    """A step of the demo failed."""


def wait_until(is_true: Callable[[], bool], what: str) -> None:
    """Wait for a condition; give up after `PATIENCE_S`."""
    deadline = time.monotonic() + PATIENCE_S
    while not is_true():
        if time.monotonic() > deadline:
            raise DemoError(f"waited {PATIENCE_S:.0f} s in vain until {what}")
        time.sleep(0.2)


class Log:
    """Log file with every command of the demo and its output."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)

    def run(self, *words: str, data: Path | None = None, cwd: Path | None = None) -> int:
        """Run an edgepack command, write its output to the log, and return its exit code."""
        with self.path.open("ab") as log:
            log.write(f"\n$ edgepack {shlex.join(words)}\n".encode())
            log.flush()
            command = [_program("edgepack"), *words]
            done = subprocess.run(
                command, env=_environment(data), cwd=cwd, stdout=log, stderr=log, check=False
            )
        return done.returncode

    def must(self, *words: str, data: Path | None = None, cwd: Path | None = None) -> None:
        """Run an edgepack command that must succeed.

        Raises:
            DemoError: The command failed.
        """
        if self.run(*words, data=data, cwd=cwd) != 0:
            raise DemoError(f"'edgepack {shlex.join(words[:2])}' failed")


class Fleet:
    """The server, and on each device an agent and an application, as separate processes."""

    def __init__(self, folder: Path, log: Log) -> None:
        self.log = log
        self.data = folder / "fleet"
        self._folder = folder
        self._logs = folder / "logs"
        self._servers: list[subprocess.Popen[bytes]] = []
        self._applications: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        self._logs.mkdir()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for process in [*self._applications.values(), *reversed(self._servers)]:
            _stop(process)

    def serve(self, *, trust: Path) -> None:
        """Start broker, controller, depot and API."""
        os.environ["EDGEPACK_FLEET_URL"] = f"http://127.0.0.1:{(port := _free_port())}"
        words = ["fleet", "serve", "--data", str(self.data), "--trust", str(trust)]
        words += ["--port", str(port), "--broker-port", str(_free_port())]
        self._start("fleet", [_program("edgepack"), *words])
        wait_until(lambda: self._ask("fleet", "info") is not None, "the fleet answers")

    @property
    def url(self) -> str:
        """URL of the fleet."""
        return os.environ["EDGEPACK_FLEET_URL"]

    def login_link(self) -> str:
        """Return a link that opens the dashboard once."""
        answer = self._ask("fleet", "login")
        if answer is None:
            raise DemoError("'edgepack fleet login' failed")
        return str(answer["url"])

    def add_device(self, device: str, providers: str) -> None:
        """Enrol a device and start its agent and its application."""
        folder = self._folder / device
        state = folder / "state"
        words = ("--group", GROUP, "-o", str(folder), "--state-dir", str(state))
        self.log.must("fleet", "enroll", device, *words, data=self.data)
        settings = folder / "agent.toml"
        extra = f"\n[telemetry]\ninterval_s = 2.0\n\n[providers]\nthreads = 1\n{providers}\n"
        settings.write_text(settings.read_text() + extra)
        self._start(
            f"{device}.agent", [_program("edgepack-agent"), "run", "--config", str(settings)]
        )
        self._applications[device] = self._start(
            f"{device}.application",
            [
                sys.executable,
                *("-m", "examples.demo.application", str(state), str(folder / "counts.json")),
            ],
        )
        self._servers.remove(self._applications[device])

    def start_rollout(self, bundle: Path, *, waves: str) -> str:
        """Start a rollout of the bundle to the group; return its id."""
        words = ("rollout", "start", str(bundle), "--group", GROUP, "--waves", waves)
        words += ("--soak", str(SOAK_S), "--deadline", str(PATIENCE_S))
        answer = self._ask(*words)
        if answer is None:
            raise DemoError("'edgepack rollout start' failed")
        return str(answer["rollout"])

    def watch(self, rollout: str) -> int:
        """Wait until a rollout has ended; return the exit code of `rollout watch`."""
        return self.log.run("rollout", "watch", rollout, data=self.data)

    def status(self, rollout: str) -> dict[str, Any]:
        """Return the result of `edgepack rollout status`."""
        self.log.run("rollout", "status", rollout, data=self.data)
        answer = self._ask("rollout", "status", rollout)
        return dict(answer) if answer else {}

    def devices(self) -> list[dict[str, Any]]:
        """Return the result of `edgepack fleet devices`."""
        answer = self._ask("fleet", "devices")
        return list(answer) if answer else []

    def stop_applications(self) -> dict[str, dict[str, Any]]:
        """Stop the applications; return the counts of each."""
        for process in self._applications.values():
            _stop(process)
        return {
            device: json.loads((self._folder / device / "counts.json").read_bytes())
            for device in self._applications
        }

    def _start(self, name: str, words: list[str]) -> subprocess.Popen[bytes]:
        with (self._logs / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                words, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=_environment(self.data)
            )
        self._servers.append(process)
        return process

    def _ask(self, *words: str) -> Any:
        done = subprocess.run(
            [_program("edgepack"), *words, "--json"],
            env=_environment(self.data),
            capture_output=True,
        )
        return json.loads(done.stdout) if done.returncode == 0 else None


def _program(name: str) -> str:
    return str(Path(sys.executable).with_name(name))


def _environment(data: Path | None) -> dict[str, str]:
    return {**os.environ, **({"EDGEPACK_FLEET_DATA": str(data)} if data else {})}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

"""A model server as a process, and a client of its unix socket without any library of edgepack."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from tests.simulators import warm_programs
from tests.simulators.waiting import PATIENCE_S, wait_until

SOCKET = "server.sock"


class Answer(NamedTuple):
    status: int
    fields: dict[str, str]
    body: bytes

    @property
    def value(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        text: str = self.value["error"]
        return text


def connect_unix(path: Path) -> socket.socket:
    """Return a connection to a unix socket, whose path may be long."""
    folder = os.open(path.parent, os.O_PATH)
    peer = socket.socket(socket.AF_UNIX)
    try:
        peer.settimeout(PATIENCE_S)
        peer.connect(f"/proc/self/fd/{folder}/{path.name}")
    except OSError:
        peer.close()
        raise
    finally:
        os.close(folder)
    return peer


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=PATIENCE_S)
        self._path = path

    def connect(self) -> None:
        self.sock = connect_unix(self._path)


class ModelServer:
    """A server of the models in `folder/state`.

    Args:
        folder: Gets the settings.
        settings: Lines of the section [server].
    """

    def __init__(self, folder: Path, *settings: str) -> None:
        self.state_dir = folder / "state"
        self.state_dir.mkdir(parents=True, exist_ok=True)
        self.config = folder / "agent.toml"
        self.log = folder / "server.log"
        lines = ['device = "cam-1"', 'state_dir = "state"', "[trust]", 'keys = ["release.pub"]']
        self.config.write_text("\n".join([*lines, "[server]", *settings]) + "\n")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def path(self) -> Path:
        runtime = self.state_dir / "latency"  # A link, where an agent has run.
        return (runtime if runtime.is_symlink() else self.state_dir) / SOCKET

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self, *, waits: bool = True) -> None:
        command = [sys.executable, "-m", "edgepack.agent.cli", "serve", "--config"]
        with self.log.open("ab") as log:
            self._process = warm_programs.Popen(
                [*command, str(self.config)], stdout=log, stderr=log
            )
        if waits:
            wait_until(self.is_ready, self.said)

    def is_ready(self) -> bool:
        try:
            return self.ask("GET", "/v2/health/ready").status == 200
        except OSError:
            return False

    def ask(
        self, method: str, path: str, body: bytes | str = b"", fields: dict[str, str] | None = None
    ) -> Answer:
        connection = UnixConnection(self.path)
        try:
            connection.request(method, path, body, fields or {})
            response = connection.getresponse()
            return Answer(response.status, dict(response.getheaders()), response.read())
        finally:
            connection.close()

    def infer(self, name: str, message: dict[str, Any], binary: bytes = b"") -> Answer:
        text = json.dumps(message).encode()
        fields = {"Inference-Header-Content-Length": str(len(text))} if binary else {}
        return self.ask("POST", f"/v2/models/{name}/infer", text + binary, fields)

    def connect(self) -> socket.socket:
        return connect_unix(self.path)

    def wait(self) -> int:
        """Wait until the server ends by itself; return the exit code."""
        assert self._process is not None
        return self._process.wait(PATIENCE_S)

    def stop(self) -> int:
        """Stop by SIGTERM; return the exit code."""
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(PATIENCE_S)

    def kill(self) -> None:
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(PATIENCE_S)

    def said(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

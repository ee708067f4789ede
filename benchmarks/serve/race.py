"""Other servers of the protocol, each in an environment of its own, with the same models."""

import contextlib
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks.packager.environments import PEERS as FOLDER
from benchmarks.packager.environments import prepare
from benchmarks.serve.kinds import Subject
from tests.simulators.ports import free_port

OWN = "edgepack"
PEERS = (OWN, "mlserver", "kserve")
"""OpenVINO Model Server is not among them: neither PyPI nor Debian has a package of the server."""
START_S = 120.0


class Addresses(NamedTuple):
    """Addresses of a server for HTTP and gRPC."""

    http: str
    grpc: str

    @classmethod
    def of(cls, http_port: int, grpc_port: int) -> "Addresses":
        """Return the addresses of two ports of loopback."""
        return cls(f"127.0.0.1:{http_port}", f"127.0.0.1:{grpc_port}")

    def of_form(self, form: str) -> str:
        """Return the address for a form of the protocol."""
        return self.grpc if form == "grpc" else self.http


@contextmanager
def running(
    peer: str, folder: Path, pid: int, addresses: Addresses
) -> Iterator[tuple[int, Addresses, str]]:
    """Run a server of the models of a folder.

    Args:
        peer: Name of the server.
        folder: Has a file NAME.onnx for each model.
        pid, addresses: Our own server, which runs already.

    Yields:
        Process, addresses, and installed versions.
    """
    if peer == OWN:
        yield pid, addresses, ""
        return
    environment = prepare(peer)
    ports = free_port(), free_port()
    program = FOLDER / peer / "model_server.py"
    command = [environment.python, program, *map(str, ports), folder]
    with (folder / f"{peer}.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        found = Addresses.of(*ports)
        _wait(found, process, folder / f"{peer}.log")
        yield process.pid, found, environment.version
    finally:
        process.kill()
        process.wait()


def check_kserve_client(addresses: Addresses, subject: Subject) -> str:
    """Let KServe's own clients call our server; return "conforms", or the reason if not."""
    words = (FOLDER / "kserve" / "client_check.py", *addresses, subject.name, *subject.shape)
    command = [prepare("kserve").python, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return (done.stdout or done.stderr).strip().splitlines()[-1]


def _wait(addresses: Addresses, process: "subprocess.Popen[bytes]", log: Path) -> None:
    """Wait until a server is ready.

    Raises:
        RuntimeError: The server ended, or takes too long.
    """
    until = time.monotonic() + START_S
    while time.monotonic() < until and process.poll() is None:
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"http://{addresses.http}/v2/health/ready", timeout=5).close()
            time.sleep(2)  # The port of gRPC follows.
            return
        time.sleep(0.2)
    raise RuntimeError(f"the server is not ready: {log.read_text()[-2000:]}")

"""Measurement of calls in process and through the model server: `python -m benchmarks.serve`."""

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from benchmarks.serve.client import ALL, PROTOCOLS
from benchmarks.serve.kinds import LARGE, SUBJECTS, Subject
from benchmarks.serve.page import Cell, Measured, Memory, Swaps, write_page
from benchmarks.serve.race import PEERS, Addresses, check_kserve_client, running
from benchmarks.serve.subjects import install
from benchmarks.swaps.slots import lay_out
from edgepack.agent import open_model
from edgepack.decoding import decode_json
from edgepack.errors import EdgepackError
from tests.simulators.model_server import ModelServer
from tests.simulators.pointers import write_pointer
from tests.simulators.ports import free_port

WAYS = ("bare", "process", "bound", "door", "grpc")
LARGE_WAYS = ("bare", "copy", "process", "door", "sealed", "region", "region, copied", "grpc")
RACED = (SUBJECTS[1], SUBJECTS[2])
SWAP_CLIENTS = 8


class Client:
    """A process of `benchmarks.serve.client`."""

    def __init__(
        self, way: str, name: str, folder: Path, seconds: float, address: str = ""
    ) -> None:
        command = [sys.executable, "-m", "benchmarks.serve.client", way, name, str(folder)]
        self._process = subprocess.Popen(
            [*command, "--seconds", str(seconds), "--address", address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def read(self) -> str:
        """Return the next line."""
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def say(self) -> None:
        """Let the client continue."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def end(self) -> None:
        """Let the client end."""
        self.say()
        self._process.wait()


@contextmanager
def clients(
    way: str, subject: Subject, folder: Path, count: int, seconds: float, address: str
) -> Iterator[list[Client]]:
    """Start clients that are ready to call; none if the server does not answer in this way."""
    started = [Client(way, subject.name, folder, seconds, address) for _ in range(count)]
    if not all(client.read() for client in started):
        yield []
        return
    yield started
    for client in started:
        client.end()


@contextmanager
def serving(
    subjects: Sequence[Subject], ports: tuple[int, ...] = ()
) -> Iterator[tuple[Path, ModelServer]]:
    """Install models, and run a server of them; also on ports for HTTP and gRPC, if given."""
    with tempfile.TemporaryDirectory(prefix="edgepack-bench-") as name:
        folder = Path(name)
        keys = zip(("listen", "grpc"), ports, strict=False)
        server = ModelServer(folder, *(f'{key} = "{port}"' for key, port in keys))
        for subject in subjects:
            install(subject, folder)
        with server.config.open("a") as settings:
            settings.write("[providers]\nthreads = 1\n")
        server.start()
        try:
            yield folder, server
        finally:
            server.stop()


def cpu_s(pid: int) -> float:
    """Return the processor time of a process, seconds."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def pss_mb(pid: int) -> float:
    """Return the memory of a process, shared pages divided among their users, MB."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(text.partition("Pss:")[2].split()[0]) * 1024 / 1e6


def measure_calls(
    way: str,
    subject: Subject,
    folder: Path,
    count: int,
    seconds: float,
    pid: int,
    addresses: Addresses,
) -> Cell | None:
    """Measure calls of several clients at once; None if the server does not answer in this way."""
    with clients(way, subject, folder, count, seconds, addresses.of_form(way)) as started:
        if not started:
            return None
        before = cpu_s(pid)
        for client in started:
            client.say()
        found = [decode_json(client.read()) for client in started]
        server_s = cpu_s(pid) - before
    taken = np.concatenate([one["taken_ms"] for one in found])
    calls = len(taken)
    cpu = sum(one["cpu_s"] for one in found) + server_s
    return Cell(
        model=subject.name,
        way=way,
        clients=count,
        calls=calls,
        median_ms=float(np.median(taken)),
        p99_ms=float(np.quantile(taken, 0.99)),
        cpu_ms=1000 * cpu / calls,
    )


def measure_swaps(folder: Path, swaps: int) -> Swaps:
    """Swap two releases under clients that call through the server, and through no other way."""
    subject, state_dir = SUBJECTS[1], folder / "state"
    path = folder / f"{subject.name}.onnx"
    pointers = lay_out(state_dir, path, subject.shape, 2, "swapped")
    write_pointer(state_dir, pointers[0])
    x = np.zeros(subject.shape, np.float32)
    taken: list[float] = []
    failed: list[str] = []
    is_over = threading.Event()

    def call() -> None:
        with open_model("swapped", state_dir, via="server") as model:
            while not is_over.is_set():
                started = time.perf_counter()
                try:
                    model.run({"x": x})
                except (EdgepackError, ValueError) as error:
                    failed.append(str(error))
                taken.append((time.perf_counter() - started) * 1000)

    threads = [threading.Thread(target=call) for _ in range(SWAP_CLIENTS)]
    with open_model("swapped", state_dir, via="server") as model:
        for thread in threads:
            thread.start()
        time.sleep(1)
        calm = sorted(taken)
        for number in range(1, swaps + 1):
            pointer = pointers[number % 2]
            write_pointer(state_dir, pointer)
            while model.bundle != pointer.bundle:
                time.sleep(0.001)
    is_over.set()
    for thread in threads:
        thread.join()
    return Swaps(
        swaps=swaps,
        clients=SWAP_CLIENTS,
        calls=len(taken),
        failed=len(failed),
        calm_median_ms=calm[len(calm) // 2],
        calm_longest_ms=calm[-1],
        median_ms=float(np.median(taken)),
        longest_ms=max(taken),
    )


def measure_memory(folder: Path, server: ModelServer) -> Memory:
    """Measure the memory of four processes with three models, in process and by the server."""
    own: list[float] = []
    for way, count in (("process", 1), ("process", 4), ("door", 4)):
        started = [Client(way, ALL, folder, 0.5) for _ in range(count)]
        for client in started:
            client.read()
        own.append(sum(pss_mb(client.pid) for client in started))
        for client in started:
            client.say()
            client.read()
            client.end()
    return Memory(one_mb=own[0], four_mb=own[1], clients_mb=own[2], server_mb=pss_mb(server.pid))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serve", description=__doc__)
    parser.add_argument("--output", type=Path, help="folder for the page and the JSON")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--swaps", type=int, default=1000)
    given = parser.parse_args(arguments)
    cells = []
    race: list[Cell] = []
    versions: dict[str, str] = {}
    ports = free_port(), free_port()
    addresses = Addresses.of(*ports)
    with serving((*SUBJECTS, LARGE), ports) as (folder, server):

        def measure(way: str, subject: Subject, count: int, pid: int, to: Addresses) -> Cell | None:
            cell = measure_calls(way, subject, folder, count, given.seconds, pid, to)
            print(cell, file=sys.stderr, flush=True)
            return cell

        for count in (1, 4):
            for subject in (*SUBJECTS, LARGE):
                for way in LARGE_WAYS if subject is LARGE else WAYS:
                    if cell := measure(way, subject, count, server.pid, addresses):
                        cells.append(cell)
        for peer in PEERS:
            with running(peer, folder, server.pid, addresses) as (pid, to, versions[peer]):
                for subject in RACED:
                    for form in PROTOCOLS:
                        if cell := measure(form, subject, 1, pid, to):
                            race.append(replace(cell, way=f"{peer}, {form}"))
        kserve_client = check_kserve_client(addresses, RACED[0])
        swaps = measure_swaps(folder, given.swaps)
    with serving(SUBJECTS[1:]) as (folder, server):
        memory = measure_memory(folder, server)
    measured = Measured(
        cells=tuple(cells),
        race=tuple(race),
        versions=versions,
        kserve_client=kserve_client,
        swaps=swaps,
        memory=memory,
    )
    print(write_page(measured, given.output))
    return 0


if __name__ == "__main__":
    sys.exit(main())

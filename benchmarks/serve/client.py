"""A process that calls a model again and again: `python -m benchmarks.serve.client`.

It prints a line when it is ready, waits for a line, calls, and prints its numbers as JSON.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from multiprocessing import resource_tracker, shared_memory
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.serve.kinds import LARGE, SUBJECTS, Subject, open_bare
from edgepack.agent import open_model
from edgepack.agent.inference_protocol.messages import (
    InferRequest,
    InputTensor,
    RegisterRequest,
    TensorParameters,
)
from edgepack.agent.serving.server_client import ServerClient

WARM = 200
PROTOCOLS = ("json", "binary", "grpc")
"""Forms of the protocol, in which Triton's client calls the server at `--address`."""
ALL = "all"
"""Three models in one process."""
BY_NAME = {subject.name: subject for subject in (*SUBJECTS, LARGE)}


def make_call(way: str, subject: Subject, folder: Path, address: str) -> Callable[[], object]:
    """Return a function that runs an inference in one of the ways."""
    x = np.random.default_rng(0).standard_normal(subject.shape).astype(np.float32)
    state_dir = folder / "state"
    if way == "bare":
        session = open_bare(folder / f"{subject.name}.onnx")
        return lambda: session.run(None, {"x": x})
    if way == "copy":
        target = np.empty_like(x)
        return lambda: np.copyto(target, x)
    if way == "process":
        model = open_model(subject.name, state_dir, threads=1)
        return lambda: model.run({"x": x})
    if way == "bound":
        bound = open_model(subject.name, state_dir, threads=1).bind({"x": x})
        return bound.run
    if way == "door":
        served = open_model(subject.name, state_dir, via="server")
        return lambda: served.run({"x": x})
    if way == "sealed":
        return open_model(subject.name, state_dir, via="server").bind().run
    if way in PROTOCOLS:
        return _make_protocol_call(way, x, subject, address)
    return _make_region_call(way, x, subject, state_dir)


def _make_protocol_call(
    form: str, x: np.ndarray, subject: Subject, address: str
) -> Callable[[], object]:
    """Return a call by Triton's client, to any server of the protocol."""
    if form == "grpc":
        import tritonclient.grpc as triton

        tensor = triton.InferInput("x", list(x.shape), "FP32")
        tensor.set_data_from_numpy(x)
        wanted = triton.InferRequestedOutput("y")
    else:
        import tritonclient.http as triton

        is_binary = form == "binary"
        tensor = triton.InferInput("x", list(x.shape), "FP32")
        tensor.set_data_from_numpy(x, binary_data=is_binary)
        wanted = triton.InferRequestedOutput("y", binary_data=is_binary)
    client = triton.InferenceServerClient(address)

    def call() -> object:
        found = client.infer(subject.name, [tensor], outputs=[wanted]).as_numpy("y")
        assert found.shape == (1, 4)
        return found

    return call


def _make_region_call(
    way: str, x: np.ndarray, subject: Subject, state_dir: Path
) -> Callable[[], object]:
    """Return a call that leaves the input in a region, or copies the input there first."""
    import msgspec

    client = ServerClient(state_dir)
    memory = shared_memory.SharedMemory(_memory_name(), create=True, size=x.nbytes)
    place: np.ndarray = np.ndarray(x.shape, x.dtype, memory.buf)
    place[...] = x
    resource_tracker.unregister(f"/{memory.name}", "shared_memory")  # See the end of `main`.
    region = f"bench-{os.getpid()}"

    def request(path: str, message: Any) -> bytes:
        text = msgspec.json.encode(message)
        line = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(text)}\r\n\r\n"
        return line.encode() + text

    register = RegisterRequest(key=f"/{memory.name}", byte_size=x.nbytes)
    client.ask([request(f"/v2/systemsharedmemory/region/{region}/register", register)])
    parameters = TensorParameters(shared_memory_region=region, shared_memory_byte_size=x.nbytes)
    tensor = InputTensor(name="x", datatype="FP32", shape=list(x.shape), parameters=parameters)
    ask = request(f"/v2/models/{subject.name}/infer", InferRequest(inputs=[tensor]))

    def call(memory: shared_memory.SharedMemory = memory) -> object:
        if way == "region, copied":
            place[...] = x
        return client.ask([ask])

    return call


def _memory_name() -> str:
    return f"edgepack-bench-{os.getpid()}"


def main() -> None:
    """Call for a time, and print duration of each call and processor time."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serve.client", description=__doc__)
    parser.add_argument("way")
    parser.add_argument("subject", choices=[*BY_NAME, ALL])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--address", default="")
    parser.add_argument("--seconds", type=float, default=2.0)
    given = parser.parse_args()
    subjects = SUBJECTS[1:] if given.subject == ALL else (BY_NAME[given.subject],)
    calls = [make_call(given.way, subject, given.folder, given.address) for subject in subjects]

    def call() -> None:
        for one in calls:
            one()

    if len(calls) == 1:
        call = calls[0]  # type: ignore[assignment]
    until = time.perf_counter() + 1.0
    for _ in range(WARM):
        call()
        if time.perf_counter() > until:
            break
    print("ready", flush=True)
    sys.stdin.readline()
    taken: list[float] = []
    cpu = time.process_time()
    until = time.perf_counter() + given.seconds
    while (started := time.perf_counter()) < until:
        call()
        taken.append((time.perf_counter() - started) * 1000)
    cpu_s = time.process_time() - cpu
    print(json.dumps({"taken_ms": taken, "cpu_s": cpu_s, "pid": os.getpid()}), flush=True)
    sys.stdin.readline()  # The memory of this process is read meanwhile.
    for path in Path("/dev/shm").glob(f"{_memory_name()}*"):
        path.unlink()
    os._exit(0)


if __name__ == "__main__":
    main()

"""A real model server process: answers, limits, and clients that mean harm."""

import contextlib
import json
import os
import select
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgepack.agent.config import read_config
from edgepack.agent.state.holders import HolderWatch, open_holders
from edgepack.agent.state.pointer import PointerFile
from edgepack.agent.state.running_marks import RUNNING
from edgepack.agent.telemetry.collector import LatencyCollector
from edgepack.bundle.agent_release import AGENT_RELEASE
from edgepack.errors import DeviceError
from tests.simulators.model_server import ModelServer
from tests.simulators.pointers import write_pointer
from tests.simulators.ports import free_port
from tests.simulators.waiting import wait_until
from tests.unit.agent_runtime.examples import install_model, make_inputs

SIDE = 512
"""Of the input of the model `slow`."""


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, port: int) -> Iterator[ModelServer]:
    limits = (
        *(f'listen = "{port}"', "queue = 4", "parallel = 1", "connections = 40"),
        *('origins = ["http://page.example"]', "body_bytes = 8000000", "memory_bytes = 20000000"),
    )
    server = ModelServer(tmp_path_factory.mktemp("server"), *limits)
    for name, side in (("tiny", 8), ("slow", SIDE), (AGENT_RELEASE, 8)):
        pointer = install_model(server.state_dir, 1, scale=1.0, name=name, side=side)
        write_pointer(server.state_dir, pointer)
    server.start()
    yield server
    assert "Traceback" not in server.said()
    assert server.stop() == 0, server.said()


def message(x: np.ndarray, **changes: Any) -> dict[str, Any]:
    tensor = {"name": "x", "datatype": "FP32", "shape": list(x.shape), "data": x.ravel().tolist()}
    return {"inputs": [tensor | changes]}


def tiny() -> np.ndarray:
    return make_inputs(1)[0]["x"]


def binary(x: np.ndarray, **changes: Any) -> tuple[dict[str, Any], bytes]:
    given = message(x, parameters={"binary_data_size": x.nbytes}, **changes)
    del given["inputs"][0]["data"]
    return given, x.tobytes()


def test_server_describes_itself_and_its_models(server: ModelServer) -> None:
    assert server.ask("GET", "/v2").value["name"] == "edgepack"
    assert server.ask("GET", "/v2/health/live").value == {"live": True}
    assert server.ask("GET", "/v2/models").value == {"models": ["slow", "tiny"]}
    assert server.ask("GET", f"/v2/models/{AGENT_RELEASE}").status == 404, "it is only a proof"
    for path in ("/v2/models/tiny", "/v2/models/tiny/versions/1.1.0"):
        found = server.ask("GET", path).value
        assert found["versions"] == ["1.1.0"]
        assert found["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [1, 3, 8, 8]}]
        assert found["parameters"]["choice"]["chosen"] == "cpu"
    assert server.ask("GET", "/v2/models/tiny/ready").value == {"name": "tiny", "ready": True}
    head = server.ask("HEAD", "/v2/models/tiny")
    assert (head.status, head.body) == (200, b"")


def test_json_binary_and_both_mixed_give_the_same_answer(server: ModelServer) -> None:
    x = tiny()
    plain = server.infer("tiny", message(x) | {"id": "7"}).value
    assert (plain["id"], plain["model_name"], plain["model_version"]) == ("7", "tiny", "1.1.0")
    expected = np.array(plain["outputs"][0]["data"], np.float32)
    given, content = binary(x)
    for request, body in (
        (given | {"parameters": {"binary_data_output": True}}, content),
        (given | {"outputs": [{"name": "y", "parameters": {"binary_data": True}}]}, content),
        (message(x) | {"parameters": {"binary_data_output": True}}, b""),
    ):
        answer = server.infer("tiny", request, body)
        length = int(answer.fields["Inference-Header-Content-Length"])
        assert json.loads(answer.body[:length])["outputs"][0]["shape"] == [1, 4]
        assert answer.body[length:] == expected.tobytes()
    assert server.infer("tiny", given, content).value["outputs"] == plain["outputs"]


def test_chunked_body_and_expectation_are_accepted(server: ModelServer) -> None:
    text = json.dumps(message(tiny())).encode()
    with server.connect() as peer:
        fields = b"Transfer-Encoding: chunked\r\nExpect: 100-continue\r\nHost: localhost\r\n\r\n"
        peer.sendall(b"POST /v2/models/tiny/infer HTTP/1.1\r\n" + fields)
        assert peer.recv(100).startswith(b"HTTP/1.1 100 ")
        for at in range(0, len(text), 500):
            piece = text[at : at + 500]
            peer.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))
        peer.sendall(b"0\r\n\r\n")
        assert peer.recv(100).startswith(b"HTTP/1.1 200 ")


def test_requests_sent_at_once_are_answered_in_order(server: ModelServer) -> None:
    with server.connect() as peer:
        one = b"GET /v2/models/tiny/ready HTTP/1.1\r\nHost: localhost\r\n\r\n"
        two = b"GET /v2/health/live HTTP/1.1\r\nConnection: close\r\n\r\n"
        peer.sendall(one * 20 + two)
        said = b""
        while piece := peer.recv(65536):
            said += piece
    assert said.count(b'"ready":true') == 20
    assert said.endswith(b'{"live":true}')


@pytest.mark.parametrize(
    ("request_of", "status", "problem"),
    [
        (lambda x: message(x, name="z"), 400, "the model's inputs are x; given: z"),
        (lambda x: message(x, datatype="FP64"), 400, "has dtype float64, expected float32"),
        (lambda x: message(x, datatype="TEXT"), 400, "known are FP32"),
        (lambda x: message(x, shape=[3, 1, 8, 8]), 400, "expected [1, 3, 8, 8]"),
        (lambda x: message(np.repeat(x, 2, 0)), 400, "has shape [2, 3, 8, 8], expected [1,"),
        (lambda x: message(x, shape=[10**9] * 8), 400, "its shape needs"),
        (lambda x: message(x, data=None), 400, "has no data"),
        (lambda x: message(x, parameters={"binary_data_size": 9}), 400, "ends behind the end"),
        (lambda x: message(x, parameters={"binary_data_size": -1}), 400, "ends behind the end"),
        (lambda x: message(x) | {"outputs": [{"name": "z"}]}, 400, "the model's outputs are y"),
        (lambda x: {"inputs": message(x)["inputs"] * 2}, 400, "twice"),
        (lambda x: {"inputs": []}, 400, "the model's inputs are x"),
        (lambda x: {}, 400, "missing required field `inputs`"),
        (lambda x: {"inputs": 3}, 400, "Expected `array`"),
        (lambda x: message(x) | {"parameters": {"sequence_id": 3}}, 404, "no sequence '3'"),
        (
            lambda x: message(x, parameters={"shared_memory_region": "no"}),
            400,
            "bytes of shared memory",
        ),
    ],
)
def test_wrong_request_gets_an_error_that_names_the_mistake(
    server: ModelServer, request_of: Any, status: int, problem: str
) -> None:
    answer = server.infer("tiny", request_of(tiny()))
    assert answer.status == status
    assert problem in answer.error


def test_malformed_bodies_get_an_error(server: ModelServer) -> None:
    path = "/v2/models/tiny/infer"
    for body in (b"", b"[", b"\xff\xfe", b'{"inputs":' + b"[" * 100_000, b"null"):
        answer = server.ask("POST", path, body)
        assert (answer.status, "JSON" in answer.error) == (400, True)
    given, content = binary(tiny())
    answer = server.infer("tiny", given, content + b"more")
    assert "4 bytes that belong to no input" in answer.error
    for length in ("99999", "-1", "x", "9" * 30):
        fields = {"Inference-Header-Content-Length": length}
        assert server.ask("POST", path, b"{}", fields).status == 400
    assert server.ask("POST", path, b" " * 9_000_000).status == 413


def test_unknown_paths_methods_and_models_get_an_error(server: ModelServer) -> None:
    assert server.ask("GET", "/").status == 404
    assert server.ask("GET", "/v2/models/tiny/versions/9.9").error.startswith(
        "model 'tiny' serves version 1.1.0, not '9.9'"
    )
    assert server.ask("GET", "/v2/models/tiny/infer").status == 405
    assert server.ask("DELETE", "/v2/models/tiny").status == 405
    missing = server.ask("GET", "/v2/models/..%2F..%2Fetc")
    assert missing.status == 404
    assert "which has slow, tiny" in missing.error


def test_queue_beyond_its_length_is_rejected_and_others_are_served(server: ModelServer) -> None:
    """Four requests run or wait; others get 429 at once, and a model has a queue of its own."""
    x = np.zeros((1, 3, SIDE, SIDE), np.float32)
    given, content = binary(x)
    text = json.dumps(given).encode()
    head = (
        "POST /v2/models/slow/infer HTTP/1.1\r\nHost: localhost\r\n"
        f"Inference-Header-Content-Length: {len(text)}\r\nContent-Length: "
    )
    peers = [server.connect() for _ in range(7)]
    try:
        for peer in peers[:6]:
            peer.sendall(f"{head}{len(text) + len(content)}\r\n\r\n".encode() + text + content)
        assert server.infer("tiny", message(tiny())).status == 200
        said = [peer.recv(65536) for peer in peers[:6]]
    finally:
        for peer in peers:
            peer.close()
    rejected = [one for one in said if one.startswith(b"HTTP/1.1 429 ")]
    assert all(one.startswith(b"HTTP/1.1 200 ") for one in said if one not in rejected)
    assert all(b"Retry-After: 1\r\n" in one for one in rejected)
    statistics = server.ask("GET", "/v2/models/slow/stats").value["model_stats"][0]
    assert statistics["inference_stats"]["success"]["count"] >= 4
    assert f'edgepack_outcome="queue_full"}} {float(len(rejected))}' in metrics(server)


def test_large_json_keeps_no_other_request_waiting(server: ModelServer) -> None:
    """A thread reads the numbers: a small request that comes later is answered first."""
    number = 1_500_000
    given = message(tiny())
    given["inputs"][0] |= {"shape": [number], "data": [0.5] * number}
    text = json.dumps(given).encode()
    head = "POST /v2/models/tiny/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
    with server.connect() as large:
        large.sendall(f"{head}{len(text)}\r\n\r\n".encode() + text)
        assert server.infer("tiny", message(tiny())).status == 200
        assert not select.select([large], [], [], 0)[0], "the small request waited"
        assert b"has shape [1500000]" in large.recv(65536)


def metrics(server: ModelServer) -> str:
    return server.ask("GET", "/metrics").body.decode()


def test_memory_of_stalled_clients_goes_to_others(server: ModelServer) -> None:
    """Three clients fill 18 of 20 MB and stall; the next large request is served nevertheless."""
    head = b"POST /v2/models/slow/infer HTTP/1.1\r\nContent-Length: 7000000\r\n\r\n"
    peers = [server.connect() for _ in range(3)]
    try:
        for peer in peers:
            with contextlib.suppress(OSError):
                peer.sendall(head + b" " * 6_000_000)
        x = np.zeros((1, 3, SIDE, SIDE), np.float32)
        wait_until(lambda: server.infer("slow", *binary(x)).status == 200, server.said, 0.1)
    finally:
        for peer in peers:
            peer.close()


def test_idle_connections_make_room_for_new_ones(server: ModelServer) -> None:
    peers = [server.connect() for _ in range(40)]
    try:
        peers[-1].sendall(b"GET /v2/health/live HTTP/1.1\r\n\r\n")
        assert peers[-1].recv(100).startswith(b"HTTP/1.1 200 ")

        def has_room() -> bool:
            with contextlib.suppress(OSError):  # Rejected while it still sends.
                return server.infer("tiny", message(tiny())).status == 200
            return False

        wait_until(has_room, "a connection that sends nothing makes room", 0.1)
        assert peers[0].recv(10) == b"", "the oldest idle connection is ended"
    finally:
        for peer in peers:
            peer.close()


def test_burst_of_connections_gets_answers_and_no_reset(server: ModelServer) -> None:
    """All requests are sent before the server reads the first one."""
    peers = []
    os.kill(server.pid, signal.SIGSTOP)
    try:
        for _ in range(120):
            peers.append(server.connect())
            peers[-1].sendall(b"GET /v2/health/live HTTP/1.1\r\nConnection: close\r\n\r\n")
    finally:
        os.kill(server.pid, signal.SIGCONT)
    said = []
    for peer in peers:
        with peer:
            said.append(peer.recv(100)[:13])
            while peer.recv(1000):
                pass
    assert set(said) <= {b"HTTP/1.1 200 ", b"HTTP/1.1 503 "}
    assert said.count(b"HTTP/1.1 200 ") >= 40


def test_client_that_sends_after_its_rejection_reads_why(server: ModelServer) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(40):
            peer = stack.enter_context(server.connect())
            peer.sendall(b"GET / HTTP/1.1\r\n")
        late = stack.enter_context(server.connect())
        assert late.recv(13) == b"HTTP/1.1 503 "
        late.sendall(b"GET / HTTP/1.1\r\n")
        late.sendall(b"\r\n")
        assert b"too many connections" in late.recv(1000)


def test_hangup_signal_does_not_end_the_server(server: ModelServer) -> None:
    os.kill(server.pid, signal.SIGHUP)
    wait_until(lambda: "SIGHUP changes nothing" in server.said(), server.said)
    assert server.ask("GET", "/v2/health/live").status == 200


def test_long_head_is_rejected(server: ModelServer) -> None:
    with server.connect() as peer:
        peer.sendall(b"GET /" + b"x" * 20_000)
        assert peer.recv(100).startswith(b"HTTP/1.1 431 ")


def test_client_that_goes_before_its_answer_harms_nobody(server: ModelServer) -> None:
    x = np.zeros((1, 3, SIDE, SIDE), np.float32)
    given, content = binary(x)
    text = json.dumps(given).encode()
    head = f"POST /v2/models/slow/infer HTTP/1.1\r\nContent-Length: {len(text + content)}\r\n"
    head += f"Inference-Header-Content-Length: {len(text)}\r\n\r\n"
    for _ in range(12):
        with server.connect() as peer:
            peer.sendall(head.encode() + text + content)
    wait_until(lambda: server.infer("slow", given, content).status == 200, server.said)


def test_pages_of_other_sites_are_rejected_on_loopback(server: ModelServer, port: int) -> None:
    def ask(host: str, origin: str, method: str = "GET") -> str:
        with socket.create_connection(("127.0.0.1", port), 60) as peer:
            end = f"\r\nOrigin: {origin}\r\n\r\n" if origin else "\r\n\r\n"
            line = f"{method} /v2/health/live HTTP/1.1\r\nConnection: close\r\nHost: {host}"
            peer.sendall((line + end).encode())
            said = b""
            while piece := peer.recv(65536):
                said += piece
            return said.decode()

    assert ask(f"localhost:{port}", "").startswith("HTTP/1.1 200 ")
    assert ask(f"[::1]:{port}", "").startswith("HTTP/1.1 200 ")
    assert "is not this device's loopback" in ask("rebound.example", "")
    assert "name it in server.origins" in ask("127.0.0.1", "http://other.example")
    allowed = ask("127.0.0.1", "http://page.example", "OPTIONS")
    assert allowed.startswith("HTTP/1.1 204 ")
    assert "Access-Control-Allow-Origin: http://page.example\r\n" in allowed


def test_models_come_swap_and_go_while_requests_are_served(server: ModelServer) -> None:
    """No request fails because of a swap; a removed model is an error that names the others."""
    x = tiny()
    first = install_model(server.state_dir, 1, scale=1.0, name="comer")
    second = install_model(server.state_dir, 2, scale=2.0, name="comer")
    write_pointer(server.state_dir, first)
    wait_until(lambda: server.infer("comer", message(x)).status == 200, server.said)
    answers: list[dict[str, Any]] = []
    is_over = threading.Event()

    def load() -> None:
        while not is_over.is_set():
            answers.append(server.infer("comer", message(x)).value)

    threads = [threading.Thread(target=load) for _ in range(2)]
    for thread in threads:
        thread.start()
    before = server.infer("comer", message(x)).value["outputs"][0]["data"]
    wait_until(lambda: answers, server.said)
    for pointer in (second, first, second):
        write_pointer(server.state_dir, pointer)
        version = pointer.bundle.version
        wait_until(lambda: answers[-1].get("model_version") == version, server.said)  # noqa: B023
    is_over.set()
    for thread in threads:
        thread.join()
    assert not [one for one in answers if "error" in one]
    for one in answers:
        times = {"1.1.0": 1.0, "1.2.0": 2.0}[one["model_version"]]
        np.testing.assert_allclose(one["outputs"][0]["data"], times * np.array(before), rtol=1e-4)
    PointerFile(server.state_dir, "comer").remove()
    wait_until(lambda: server.infer("comer", message(x)).status == 404, server.said)
    assert "which has slow, tiny" in server.infer("comer", message(x)).error


def test_damaged_model_is_reported_and_the_others_serve(server: ModelServer) -> None:
    pointer = install_model(server.state_dir, 1, scale=1.0, name="broken")
    write_pointer(server.state_dir, pointer)
    pointer_file = server.state_dir / "models" / "broken" / "active.json"
    wait_until(lambda: server.ask("GET", "/v2/models/broken").status == 200, server.said)
    PointerFile(server.state_dir, "broken").remove()
    wait_until(lambda: server.ask("GET", "/v2/models/broken").status == 404, server.said)
    pointer_file.write_bytes(b"{")
    wait_until(lambda: server.ask("GET", "/v2/health/ready").status == 503, server.said)
    wait_until(
        lambda: "pointer to the active model is damaged" in server.infer("broken", {}).error,
        server.said,
    )
    rows = server.ask("POST", "/v2/repository/index").value
    assert {row["name"]: row["state"] for row in rows}["broken"] == "UNAVAILABLE"
    assert server.infer("tiny", message(tiny())).status == 200
    pointer_file.unlink()
    wait_until(server.is_ready, server.said)


def test_second_server_of_a_device_is_an_error(server: ModelServer) -> None:
    other = ModelServer(server.config.parent / "other")
    other.config.write_text(f'device = "a"\nstate_dir = "{server.state_dir}"\n[trust]\nkeys = []\n')
    other.start(waits=False)
    assert other.wait() == 1
    assert "another server runs" in other.said()
    assert server.infer("tiny", message(tiny())).status == 200


@pytest.mark.parametrize("key", ["listen", "grpc"])
@pytest.mark.parametrize("listen", ["0.0.0.0:1", "example.org:1", "unix:/a", "x", "[::]:1"])
def test_server_listens_on_loopback_alone(tmp_path: Path, listen: str, key: str) -> None:
    server = ModelServer(tmp_path, f'{key} = "{listen}"')
    with pytest.raises(DeviceError, match="the model server listens on loopback alone") as caught:
        read_config(server.config)
    assert f"server.{key}" in str(caught.value)


def test_death_of_the_server_is_blamed_on_the_model_that_ran(tmp_path: Path) -> None:
    server = ModelServer(tmp_path, "parallel = 1")
    for name, side in (("tiny", 8), ("slow", 1024)):
        write_pointer(
            server.state_dir, install_model(server.state_dir, 1, scale=1.0, name=name, side=side)
        )
    assert open_holders(server.state_dir) == ""
    server.start()
    assert server.infer("tiny", message(tiny())).status == 200
    given, content = binary(np.zeros((1, 3, 1024, 1024), np.float32))
    text = json.dumps(given).encode()
    head = f"POST /v2/models/slow/infer HTTP/1.1\r\nContent-Length: {len(text + content)}\r\n"
    head += f"Inference-Header-Content-Length: {len(text)}\r\n\r\n"

    def runs() -> bool:
        files = (server.state_dir / "holders").glob("*.json")
        return any(b'"slow"' in one and RUNNING in one for one in map(Path.read_bytes, files))

    with contextlib.ExitStack() as stack:
        for _ in range(8):
            peer = stack.enter_context(server.connect())
            peer.sendall(head.encode() + text + content)
        wait_until(runs, server.said, 0.001)
        server.kill()
    assert {death.held.model for death in HolderWatch(server.state_dir).look().deaths} == {"slow"}


def test_running_requests_are_answered_before_the_server_ends(tmp_path: Path) -> None:
    server = ModelServer(tmp_path)
    pointer = install_model(server.state_dir, 1, scale=1.0, name="slow", side=1024)
    write_pointer(server.state_dir, pointer)
    server.start()
    assert oct(server.path.stat().st_mode & 0o777) == "0o660"
    given, content = binary(np.zeros((1, 3, 1024, 1024), np.float32))
    text = json.dumps(given).encode()
    head = f"POST /v2/models/slow/infer HTTP/1.1\r\nContent-Length: {len(text + content)}\r\n"
    with server.connect() as peer, server.connect() as idle:
        peer.sendall(f"{head}Inference-Header-Content-Length: {len(text)}\r\n\r\n".encode())
        peer.sendall(text + content)
        os.kill(server.pid, signal.SIGTERM)
        assert peer.recv(100).startswith(b"HTTP/1.1 200 ")
        assert idle.recv(100) == b""
    assert server.stop() == 0
    assert not server.path.exists()
    (counted,) = LatencyCollector(tmp_path / "state").collect().telemetry
    assert counted.latency.count == 1

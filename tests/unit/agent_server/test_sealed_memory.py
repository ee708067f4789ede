"""`bind` of a served model: memory that a real server maps, and memory that the server rejects."""

import fcntl
import mmap
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import pytest

from edgepack.agent import open_model
from edgepack.agent.server import memory_socket
from edgepack.agent.serving import served_bound, server_client
from edgepack.agent.state.model_server import MEMORY_FILE
from edgepack.errors import DeviceError
from tests.simulators.model_server import ModelServer, connect_unix
from tests.simulators.pointers import write_pointer
from tests.simulators.waiting import wait_until
from tests.unit.agent_runtime.examples import install_model, make_inputs

X = make_inputs(1)[0]["x"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelServer]:
    limits = "body_bytes = 4096", "memory_bytes = 1048576"
    server = ModelServer(tmp_path_factory.mktemp("server"), *limits)
    write_pointer(server.state_dir, install_model(server.state_dir, 1, scale=1.0))
    server.start()
    yield server
    assert "Traceback" not in server.said()
    assert server.stop() == 0
    assert not server.path.with_name(MEMORY_FILE).exists()


def test_bound_call_answers_as_in_the_process(server: ModelServer) -> None:
    with (
        open_model("tiny", server.state_dir, threads=1) as own,
        open_model("tiny", server.state_dir, via="server") as served,
    ):
        expected, zeros = own.run({"x": X})["y"], own.run({"x": np.zeros_like(X)})["y"]
        x = X.copy()
        for bound in (served.bind(), served.bind({"x": x})):
            bound.inputs["x"][...] = X
            outputs = bound.run()
            np.testing.assert_array_equal(outputs["y"], expected)
            bound.inputs["x"][...] = 0
            assert bound.run() is outputs
            np.testing.assert_array_equal(outputs["y"], zeros)
        with pytest.raises(ValueError, match=r"has shape \[1\], expected"):
            served.bind({"x": np.zeros(1, np.float32)})
        with pytest.raises(ValueError, match="is not contiguous"):
            served.bind({"x": np.zeros((1, 3, 8, 16), np.float32)[..., ::2]})
        regions = server.ask("GET", "/v2/systemsharedmemory/status").value
        assert regions == [], "sealed memory is nobody else's"
    with pytest.raises(ValueError, match="the model is closed"):
        bound.run()


def test_update_and_restart_of_the_server_leave_the_arrays(server: ModelServer) -> None:
    second = install_model(server.state_dir, 2, scale=2.0)
    first = install_model(server.state_dir, 1, scale=1.0)
    with open_model("tiny", server.state_dir, via="server") as served:
        bound = served.bind()
        bound.inputs["x"][...] = X
        before = np.array(bound.run()["y"], np.float32)
        server.kill()
        server.start()
        np.testing.assert_array_equal(bound.run()["y"], before)
        write_pointer(server.state_dir, second)
        wait_until(lambda: served.bundle.version == "1.2.0", server.said)
        after = np.array(bound.run()["y"], np.float32)
        np.testing.assert_allclose(after, 2 * before, rtol=1e-4)
        pid = os.fork()
        if not pid:
            try:
                bound.run()
            except ValueError as error:
                os._exit(0 if "call model.bind again" in str(error) else 1)
            os._exit(2)
        assert os.waitpid(pid, 0)[1] == 0
        write_pointer(server.state_dir, first)
        wait_until(lambda: served.bundle.version == "1.1.0", server.said)
        np.testing.assert_array_equal(bound.run()["y"], before)


def test_memory_of_a_client_can_neither_shrink_nor_lose_pages() -> None:
    file, arrays = served_bound._share({"x": X})
    try:
        arrays["x"][...] = 1
        for act in (
            lambda: os.ftruncate(file, 0),
            lambda: os.ftruncate(file, 2**20),
            lambda: os.pwrite(file, b"x", 0),
            lambda: mmap.mmap(file, 1),
            lambda: fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE),
        ):
            with pytest.raises(PermissionError):
                act()
    finally:
        os.close(file)


def memory(size: int, seals: int, *, is_whole: bool = True) -> int:
    file = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.ftruncate(file, size)
    if is_whole and size:
        os.posix_fallocate(file, 0, size)
    if seals:
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, seals)
    return file


def send(server: ModelServer, *files: int) -> tuple[socket.socket, str]:
    peer = connect_unix(server.path.with_name(MEMORY_FILE))
    socket.send_fds(peer, [b"\0"], files)
    return peer, peer.recv(10_000).decode()


BOTH = served_bound._SEALS


@pytest.mark.parametrize(
    ("size", "seals", "is_whole", "status", "problem"),
    [
        (4096, BOTH, True, 200, "sealed-"),
        (4096, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_WRITE, True, 200, "sealed-"),
        (4096, 0, True, 400, "not sealed against shrinking"),
        (4096, fcntl.F_SEAL_SHRINK, True, 400, "not sealed against shrinking and writing"),
        (4096, fcntl.F_SEAL_WRITE, True, 400, "not sealed against shrinking"),
        (0, BOTH, True, 400, "empty"),
        (2**20, BOTH, False, 400, "pages that are not allocated"),
        (2**40, BOTH, False, 400, "pages that are not allocated"),
        (2**20 + 1, BOTH, True, 429, "requests hold all memory"),
    ],
)
def test_only_memory_that_cannot_end_the_server_is_mapped(
    server: ModelServer, size: int, seals: int, is_whole: bool, status: int, problem: str
) -> None:
    file = memory(size, seals, is_whole=is_whole)
    peer, said = send(server, file)
    os.close(file)
    with peer:
        assert said.startswith(f"HTTP/1.1 {status} ")
        assert problem in said


def test_other_descriptors_are_rejected(server: ModelServer) -> None:
    ends = os.pipe()
    file = memory(4096, BOTH)
    for files, problem in (
        ((ends[0],), "is not sealed memory"),
        ((), "a single descriptor, not 0"),
        ((file, file), "a single descriptor, not 2"),
        ((file,) * 6, "a single descriptor, not 4"),
    ):
        peer, said = send(server, *files)
        with peer:
            assert problem in said
    for one in (*ends, file):
        os.close(one)
    assert server.ask("GET", "/v2/health/live").status == 200


def test_memory_counts_until_its_client_goes(server: ModelServer) -> None:
    file = memory(1_000_000, BOTH)
    first, said = send(server, file)
    assert " 200 " in said
    other, said = send(server, file)
    assert " 429 " in said
    first.close()
    other.close()

    def has_room() -> bool:
        peer, said = send(server, file)
        peer.close()
        return " 200 " in said

    wait_until(has_room, server.said)
    os.close(file)


def test_too_many_clients_are_told_so(server: ModelServer, monkeypatch: pytest.MonkeyPatch) -> None:
    place = server.path.with_name(MEMORY_FILE)
    with ExitStack() as stack:
        for _ in range(memory_socket.MAX_CLIENTS):
            stack.enter_context(connect_unix(place))
        late = stack.enter_context(connect_unix(place))
        assert b"too many connections" in late.recv(1000)
    monkeypatch.setattr(server_client, "PATIENCE_S", 0.0)
    with open_model("tiny", server.state_dir, via="server") as served:
        wait_until(lambda: served.bind().run()["y"].shape == (1, 4), server.said)
        place.unlink()
        with pytest.raises(DeviceError, match="the model server does not answer"):
            served.bind()
    server.kill()
    server.start()

"""`open_model(name, via="server")`: the same as in the process, over a real server."""

import asyncio
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edgepack.agent import open_model
from edgepack.agent.serving import server_client
from edgepack.errors import DeviceError
from tests.simulators.model_server import ModelServer
from tests.simulators.pointers import write_pointer
from tests.simulators.waiting import wait_until
from tests.unit.agent_runtime.examples import install_model, make_inputs

FEEDS = make_inputs(1)[0]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelServer]:
    folder = tmp_path_factory.mktemp("server") / ("long" * 30)  # More than a socket's path may have
    server = ModelServer(folder)
    write_pointer(server.state_dir, install_model(server.state_dir, 1, scale=1.0))
    server.start()
    yield server
    server.kill()


def test_served_model_answers_as_the_model_in_the_process(server: ModelServer) -> None:
    with (
        open_model("tiny", server.state_dir, threads=1) as own,
        open_model("tiny", server.state_dir, via="server") as served,
    ):
        expected = own.run(FEEDS)["y"]
        reversed_feed = np.flip(np.flip(FEEDS["x"], 1).copy(), 1)  # Not contiguous.
        for feeds in (FEEDS, FEEDS["x"], {"x": reversed_feed}):
            got = served.run(feeds)["y"]
            np.testing.assert_array_equal(got, expected)
            got[...] = 0  # The application owns the array.
        for name in ("bundle", "choice", "inputs", "outputs", "troubles"):
            assert getattr(own, name) == getattr(served, name)
        with served.session() as session:
            np.testing.assert_array_equal(session.run(FEEDS)["y"], expected)
            assert session.bundle == own.bundle
            assert session.choice == own.choice
        np.testing.assert_array_equal(asyncio.run(served.run_async(FEEDS))["y"], expected)
        assert len(served.run_batch([FEEDS, FEEDS])) == 2
        wrong = (
            {"z": FEEDS["x"]},
            {"x": FEEDS["x"].astype(np.float64)},
            {"x": FEEDS["x"][0]},
            {"x": [1.0]},
            3.0,
        )
        for mistake in wrong:
            problems = []
            for model in (own, served):
                with pytest.raises(ValueError, match=r"input|expected") as caught:
                    model.run(mistake)  # type: ignore[arg-type]
                problems.append(str(caught.value))
            assert problems[0] == problems[1]
        with pytest.raises(ValueError, match="hold_s is 0 to 86400 seconds"):
            served.session(hold_s=-1)
    with pytest.raises(ValueError, match="the model is closed"):
        served.run(FEEDS)


def test_unknown_names_are_errors_as_in_the_process(server: ModelServer) -> None:
    with pytest.raises(DeviceError, match="no model 'other' is active on this device"):
        open_model("other", server.state_dir, via="server")
    with pytest.raises(DeviceError, match="is not a name of a model"):
        open_model("../tiny", server.state_dir, via="server")


def test_missing_server_is_an_error_that_names_the_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_client, "PATIENCE_S", 0.0)
    with pytest.raises(DeviceError, match="the model server does not answer") as caught:
        open_model("tiny", tmp_path, via="server")
    assert "enabled = true in [server]" in str(caught.value)


def test_missing_state_folder_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="no such state folder") as caught:
        open_model("tiny", tmp_path / "absent", via="server")
    assert str(tmp_path / "absent") in str(caught.value)


def test_forked_children_and_threads_share_one_server(server: ModelServer) -> None:
    faults: list[BaseException] = []
    with open_model("tiny", server.state_dir, via="server") as model:
        expected = model.run(FEEDS)["y"]
        session = model.session()

        def use() -> None:
            try:
                for _ in range(50):
                    np.testing.assert_array_equal(model.run(FEEDS)["y"], expected)
                    np.testing.assert_array_equal(session.run(FEEDS)["y"], expected)
            except BaseException as error:
                faults.append(error)
                raise

        children = []
        for _ in range(3):
            pid = os.fork()
            if not pid:
                use()
                session.close()
                os._exit(0)
            children.append(pid)
        threads = [threading.Thread(target=use) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [os.waitpid(pid, 0)[1] for pid in children] == [0, 0, 0]
        session.run(FEEDS)
        session.close()
        with pytest.raises(ValueError, match="the session is closed"):
            session.run(FEEDS)
    assert not faults


def test_session_keeps_its_release_and_calls_outlive_a_killed_server(server: ModelServer) -> None:
    second = install_model(server.state_dir, 2, scale=2.0)
    first = install_model(server.state_dir, 1, scale=1.0)
    with open_model("tiny", server.state_dir, via="server") as model:
        before = model.run(FEEDS)["y"]
        session, short = model.session(), model.session(hold_s=0.0)
        server.kill()
        restart = threading.Timer(0.2, server.start)
        restart.start()
        np.testing.assert_array_equal(model.run(FEEDS)["y"], before)
        np.testing.assert_array_equal(session.run(FEEDS)["y"], before)
        restart.join()
        short.run(FEEDS)
        write_pointer(server.state_dir, second)
        wait_until(lambda: model.bundle.version == "1.2.0", server.said)
        np.testing.assert_array_equal(session.run(FEEDS)["y"], before)
        assert session.bundle.version == "1.1.0"
        assert not np.array_equal(model.run(FEEDS)["y"], before)
        reasons: list[str] = []

        def is_over() -> bool:
            try:
                short.run(FEEDS)
            except DeviceError as error:
                reasons.append(str(error))
            return bool(reasons)

        wait_until(is_over, server.said)
        assert "the session's release 1.1.0 is no longer held: version 1.2.0 serves" in reasons[0]
        server.kill()
        server.start()
        with pytest.raises(DeviceError, match="the model server was started again"):
            session.run(FEEDS)
        write_pointer(server.state_dir, first)  # The other tests share the server.
        wait_until(lambda: model.bundle.version == "1.1.0", server.said)

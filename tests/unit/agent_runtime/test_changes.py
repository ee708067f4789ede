"""Notices of changed files, and processes that follow a model by them."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from msgspec.structs import replace

from edgepack.agent.serving import following
from edgepack.agent.serving.model import open_model
from edgepack.agent.state import changes
from edgepack.agent.state.changes import ChangeNotifier
from tests.simulators.pointers import write_pointer
from tests.simulators.waiting import PATIENCE_S, wait_until
from tests.unit.agent_runtime.examples import install_model, make_inputs


def install(state_dir: Path, release: int) -> None:
    write_pointer(state_dir, replace(install_model(state_dir, release, scale=1.0), committed=True))


@pytest.fixture
def no_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no thread look by itself: only a notice can tell of a change."""
    monkeypatch.setattr(following, "IDLE_S", 10 * PATIENCE_S)
    monkeypatch.setattr(following, "BEAT_S", 10 * PATIENCE_S)


def test_a_file_that_is_renamed_into_a_folder_is_noticed(tmp_path: Path) -> None:
    notifier, here, elsewhere = ChangeNotifier(), threading.Event(), threading.Event()
    (tmp_path / "other").mkdir()
    assert notifier.watch(tmp_path, here)
    assert notifier.watch(tmp_path / "other", elsewhere)
    (tmp_path / "new").write_text("x")
    (tmp_path / "new").rename(tmp_path / "active.json")
    assert here.wait(PATIENCE_S)
    assert not elsewhere.is_set()
    notifier.forget(here)
    assert not notifier.is_watching(here)
    assert notifier.is_watching(elsewhere)


def test_a_folder_that_is_removed_is_watched_no_more(tmp_path: Path) -> None:
    notifier, event = ChangeNotifier(), threading.Event()
    (tmp_path / "folder").mkdir()
    notifier.watch(tmp_path / "folder", event)
    (tmp_path / "folder").rmdir()
    assert event.wait(PATIENCE_S)
    wait_until(lambda: not notifier.is_watching(event), "the watch is gone")
    assert not notifier.watch(tmp_path / "folder", event)


def test_an_idle_process_follows_by_the_notice_alone(tmp_path: Path, no_turns: None) -> None:
    install(tmp_path, 1)
    with open_model("tiny", tmp_path, threads=1) as model:
        wait_until(lambda: changes.notifier().is_watching(model._follower._wake))  # type: ignore[union-attr]
        install(tmp_path, 2)
        wait_until(lambda: model.bundle.release == 2, "the kernel tells of the switch")
        install(tmp_path, 3)
        wait_until(lambda: model.bundle.release == 3, "and of the next")


def test_a_forked_child_has_a_notifier_of_its_own(tmp_path: Path, no_turns: None) -> None:
    install(tmp_path, 1)
    asked, told = os.pipe(), os.pipe()
    with open_model("tiny", tmp_path, threads=1) as model:
        pid = os.fork()
        if not pid:  # pragma: no cover - another process
            model.run(make_inputs(1)[0])
            notifier, wake = changes.notifier(), model._follower._wake
            wait_until(lambda: notifier is not None and notifier.is_watching(wake))
            os.write(told[1], b"1")
            os.read(asked[0], 1)
            wait_until(lambda: model.bundle.release == 2)
            os._exit(0)
        assert os.read(told[0], 1) == b"1"
        install(tmp_path, 2)
        wait_until(lambda: model.bundle.release == 2, "the parent follows")
        os.write(asked[1], b"1")
        assert os.waitpid(pid, 0)[1] == 0


WITHOUT_NOTICES = """
import os, resource, sys
from edgepack.agent import open_model
from edgepack.agent.state import changes
from tests.simulators.waiting import wait_until

class NoneLeft(changes.ChangeNotifier):
    def __init__(self):
        most = resource.getrlimit(resource.RLIMIT_NOFILE)
        # The registration has a descriptor of a high number, which leaves the low numbers free.
        used = max(number for number in map(int, os.listdir("/proc/self/fd")) if number < 1000)
        resource.setrlimit(resource.RLIMIT_NOFILE, (used, most[1]))
        try:
            super().__init__()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, most)

changes.ChangeNotifier = NoneLeft
with open_model("tiny", sys.argv[1], threads=1) as model:
    assert changes.notifier() is None
    print("open", flush=True)
    wait_until(lambda: model.bundle.release == 2)
"""


def test_a_process_looks_by_itself_where_no_notice_is_left(tmp_path: Path) -> None:
    install(tmp_path, 1)
    with subprocess.Popen(
        [sys.executable, "-c", WITHOUT_NOTICES, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        install(tmp_path, 2)
        _, errors = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, errors

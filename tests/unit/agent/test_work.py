"""Work in the background of the agent's loop: a single piece at a time, halted when no longer
needed.
"""

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgepack.agent.runtime.child import run_child
from edgepack.agent.update.work import InlineWorker, ThreadWorker
from edgepack.halt import Halt, HaltedError
from tests.simulators.children import hanging_child, has_ended, noted_pid

LONG_S = 60.0


@pytest.fixture
def worker() -> Iterator[ThreadWorker]:
    worker = ThreadWorker(lambda: None)
    yield worker
    assert worker.stop(LONG_S)


def test_what_it_gives_and_what_it_raises_come_where_the_result_is_asked_for(
    worker: ThreadWorker,
) -> None:
    for one in (worker, InlineWorker()):
        good, bad = one.begin(lambda _halt: 7), one.begin(lambda _halt: 1 // 0)
        assert good.wait(LONG_S)
        assert bad.wait(LONG_S)
        assert good.result() == 7
        with pytest.raises(ZeroDivisionError):
            bad.result()


def test_pieces_take_turns(worker: ThreadWorker) -> None:
    at_work = threading.Event()
    go_on = threading.Event()
    order: list[str] = []

    def first(_halt: Halt) -> None:
        at_work.set()
        go_on.wait(LONG_S)
        order.append("first")

    one = worker.begin(first)
    two = worker.begin(lambda _halt: order.append("second"))
    assert at_work.wait(LONG_S)
    assert not one.is_done
    assert not two.is_done
    go_on.set()
    assert two.wait(LONG_S)
    assert order == ["first", "second"]


def test_a_piece_that_waits_and_is_halted_is_never_begun(worker: ThreadWorker) -> None:
    go_on = threading.Event()
    worker.begin(lambda _halt: go_on.wait(LONG_S))
    begun: list[str] = []
    job = worker.begin(lambda _halt: begun.append("it"))
    job.halt.set()
    go_on.set()
    assert job.wait(LONG_S)
    with pytest.raises(HaltedError):
        job.result()
    assert begun == []


def test_stopping_halts_what_is_done_and_all_that_waits() -> None:
    worker = ThreadWorker(lambda: None)
    at_work = threading.Event()

    def endless(halt: Halt) -> None:
        at_work.set()
        assert halt.wait(LONG_S)
        halt.check()

    jobs = [worker.begin(endless), worker.begin(endless)]
    assert at_work.wait(LONG_S)
    assert worker.stop(LONG_S)
    for job in (*jobs, worker.begin(endless)):
        job.halt.set()
    with pytest.raises(HaltedError):
        jobs[0].result()


def test_the_loop_is_woken_when_a_piece_is_done_and_tidied_up_after() -> None:
    told: list[str] = []
    woken = threading.Event()

    def wake() -> None:
        told.append("woken")
        woken.set()

    worker = ThreadWorker(wake, tidy=lambda: told.append("tidied"))
    worker.begin(lambda _halt: told.append("done"))
    assert woken.wait(LONG_S)
    assert told == ["done", "tidied", "woken"]
    assert worker.stop(LONG_S)


STRAYS = """
import subprocess, sys
from edgepack.agent.hooks.strays import adopt_strays, end_strays
adopt_strays()
left = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', {child!r}])"
child = "import os, time; os.setsid(); print(os.getpid(), flush=True); time.sleep(600)"
hook = subprocess.Popen(
    [sys.executable, "-c", left.format(child=child)], stdout=subprocess.PIPE, text=True,
    start_new_session=True,
)
pid = int(hook.stdout.readline())
hook.wait()
print(pid, end_strays())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="orphans are adopted on Linux")
def test_a_process_that_left_its_group_and_its_parent_is_found_and_ended() -> None:
    done = subprocess.run(
        [sys.executable, "-c", STRAYS], capture_output=True, text=True, timeout=LONG_S, check=True
    )
    pid, count = map(int, done.stdout.split())
    assert count == 1
    assert has_ended(pid)


def test_a_halted_child_ends_with_all_that_it_started(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    halt = Halt()

    def end_it() -> None:
        while noted_pid(note) is None:
            halt.wait(0.01)
        halt.set()

    ender = threading.Thread(target=end_it)
    ender.start()
    with pytest.raises(HaltedError):
        run_child(hanging_child(note), b"", timeout_s=LONG_S, halt=halt)
    ender.join()
    pid = noted_pid(note)
    assert pid is not None
    assert has_ended(pid)

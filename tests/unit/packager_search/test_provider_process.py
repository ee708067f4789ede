"""Children that answer line by line, crash, hang, or end when they should."""

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from edgepack.packager.progress import BuildStep
from edgepack.packager.runtime.provider_process import CHILD, ProviderProcess, report_waiting
from tests.simulators.children import (
    LONGER_AND_LONGER_S,
    child,
    hanging_child,
    has_ended,
    noted_pid,
)

_ECHO = "import os, sys\nfor line in sys.stdin: print(os.getpid(), len(line), flush=True)"


def test_one_child_answers_several_requests_and_a_new_start_is_a_fresh_process() -> None:
    with ProviderProcess(child(_ECHO)) as process:
        process.start_anew("npu")
        first, second = (process.ask(b"{}", timeout_s=400.0).answer for _ in range(2))
        assert first == second
        assert process.subject == "npu"
        process.start_anew("cpu")
        third = process.ask(b"{}", timeout_s=400.0).answer
    assert first is not None
    assert third is not None
    assert first.split()[0] != third.split()[0]
    assert process.subject == ""
    assert has_ended(int(first.split()[0]))
    assert has_ended(int(third.split()[0]))


def test_a_child_started_ahead_for_the_same_is_asked_and_for_another_is_ended(
    tmp_path: Path,
) -> None:
    starts = tmp_path / "starts"
    counting = f"import os\nopen({str(starts)!r}, 'a').write(f'{{os.getpid()}}\\n')\n{_ECHO}"
    with ProviderProcess(child(counting)) as process:
        process.start_anew("npu")
        process.start_anew("npu")
        answer = process.ask(b"{}", timeout_s=400.0).answer
        assert answer is not None
        assert [answer.split()[0].decode()] == starts.read_text().split(), "one start for both"
        process.start_anew("npu")
        process.ask(b"{}", timeout_s=400.0)
        assert len(starts.read_text().split()) == 2, "a child that was asked is not fresh"


def test_a_signal_while_a_child_is_ended_is_handled_after_that_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = subprocess.Popen.communicate

    def interrupted(self: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
        # A thread of a library may get the signal; the main thread handles the signal.
        other = threading.Thread(target=signal.raise_signal, args=(signal.SIGINT,))
        other.start()
        other.join()
        return whole(self)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with ProviderProcess(child(_ECHO)) as process:
            process.start_anew("npu")
            with monkeypatch.context() as patched:
                patched.setattr(subprocess.Popen, "communicate", interrupted)
                with pytest.raises(KeyboardInterrupt):
                    process.close()
            assert process.subject == "", "ended all the same"
            process.start_anew("cpu")
            assert process.ask(b"{}", timeout_s=400.0).answer is not None
    finally:
        signal.signal(signal.SIGINT, before)


def test_what_a_child_is_sent_as_it_starts_comes_first_and_leaves_it_fresh(tmp_path: Path) -> None:
    got = tmp_path / "got"
    noting = (
        "import sys\nfor line in sys.stdin:\n"
        f"    open({str(got)!r}, 'a').write(line)\n"
        "    if line != 'load\\n': print('done', flush=True)\n"
    )
    with ProviderProcess() as process:
        process.start_anew("npu", b"load", child(noting))
        process.start_anew("npu", b"load", child(noting))
        assert process.ask(b"run", timeout_s=400.0).answer == b"done"
    assert got.read_text() == "load\nrun\n"


def test_a_child_that_ends_as_it_starts_says_so_to_who_asks_it() -> None:
    with ProviderProcess() as process:
        for _ in range(5):
            process.start_anew("npu", b"load", child("raise SystemExit(1)"))
            assert process.ask(b"run", timeout_s=400.0).because == "ended with exit code 1"


def test_a_request_larger_than_a_pipe_arrives_whole() -> None:
    with ProviderProcess(child(_ECHO)) as process:
        process.start_anew("npu")
        answer = process.ask(b"x" * 1_000_000, timeout_s=400.0).answer
    assert answer is not None
    assert answer.split()[1] == b"1000001"


@pytest.mark.parametrize(
    ("code", "because"),
    [
        ("import os; os.kill(os.getpid(), 11)", "crashed with SIGSEGV"),
        ("raise SystemExit('no such chip')", "ended with exit code 1: no such chip"),
        ("print('half', end='')", "ended with exit code 0"),
    ],
)
def test_a_child_that_ends_without_a_whole_line_says_how(code: str, because: str) -> None:
    with ProviderProcess(child(code)) as process:
        process.start_anew("npu")
        ending = process.ask(b"x" * 1_000_000, timeout_s=400.0)
        assert (ending.answer, ending.because) == (None, because)
        assert process.subject == "", "there is nothing left to ask"
        with pytest.raises(ValueError, match="no child runs"):
            process.ask(b"{}", timeout_s=1.0)


def test_a_child_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    grandchild = tmp_path / "pid"
    for timeout_s in LONGER_AND_LONGER_S:
        with ProviderProcess(hanging_child(grandchild)) as process:
            process.start_anew("npu")
            ending = process.ask(b"{}", timeout_s=timeout_s)
        assert ending.because == f"no answer within {timeout_s:g} s"
        if (pid := noted_pid(grandchild)) is not None:
            break
    assert pid is not None
    assert has_ended(pid)


def test_a_child_whose_parent_is_gone_sees_the_end_of_its_stdin_and_ends() -> None:
    ended = subprocess.run(CHILD, input=b"", capture_output=True, timeout=400, check=False)
    assert (ended.returncode, ended.stdout) == (0, b"")


def test_while_a_child_lets_wait_it_is_told_for_how_long(tmp_path: Path) -> None:
    told: list[float] = []
    note = tmp_path / "told"
    late = child(
        "import os, sys, time\n"
        "for line in sys.stdin:\n"
        f"    while not os.path.exists({str(note)!r}): time.sleep(.01)\n"
        "    print(1, flush=True)"
    )

    def hear(waited_s: float) -> None:
        told.append(waited_s)
        note.touch()

    with ProviderProcess(late) as process:
        process.start_anew("npu")
        assert process.ask(b"{}", timeout_s=400.0, waiting=hear).answer == b"1"
    assert told[0] >= 1.0


def test_who_waits_sees_after_a_while_what_for_and_how_much_time_is_left() -> None:
    shown: list[BuildStep] = []
    waiting = report_waiting(shown.append, 600.0)
    for waited_s in (1.0, 4.9, 5.0, 90.2):
        waiting(waited_s)
    assert shown == [
        BuildStep(detail="waited 5 s for an answer, of 600 at most"),
        BuildStep(detail="waited 90 s for an answer, of 600 at most"),
    ]


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel of Linux ends such a child")
def test_a_stopped_child_does_not_outlive_a_killed_parent(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    stopped = child(
        "import os, signal\n"
        "from edgepack.agent.runtime.child import end_with_parent\n"
        "end_with_parent()\n"
        f"open({str(note)!r}, 'w').write(str(os.getpid()))\n"
        "os.kill(os.getpid(), signal.SIGSTOP)"
    )
    parent = subprocess.Popen(
        child(
            "import subprocess, time\n"
            f"subprocess.Popen({stopped!r}, start_new_session=True); time.sleep(600)"
        )
    )
    try:
        while not (note.exists() and _is_stopped(note.read_text())):
            time.sleep(0.01)
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    assert has_ended(int(note.read_text()))


def _is_stopped(pid: str) -> bool:
    if not pid:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

"""Children that answer line by line, crash, hang, or end when they should."""

import subprocess
from pathlib import Path

import pytest

from edgepack.packager.judging.provider_process import CHILD, ProviderProcess
from tests.simulators.children import child, hanging_child, has_ended

_ECHO = "import os, sys\nfor line in sys.stdin: print(os.getpid(), len(line), flush=True)"


def test_one_child_answers_several_requests_and_a_new_start_is_a_fresh_process() -> None:
    with ProviderProcess(child(_ECHO)) as process:
        process.start_anew("npu")
        first, second = (process.ask(b"{}", timeout_s=30.0).answer for _ in range(2))
        assert first == second
        assert process.subject == "npu"
        process.start_anew("cpu")
        third = process.ask(b"{}", timeout_s=30.0).answer
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
        answer = process.ask(b"{}", timeout_s=30.0).answer
        assert answer is not None
        assert [answer.split()[0].decode()] == starts.read_text().split(), "one start for both"
        process.start_anew("npu")
        process.ask(b"{}", timeout_s=30.0)
        assert len(starts.read_text().split()) == 2, "a child that was asked is not fresh"


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
        assert process.ask(b"run", timeout_s=30.0).answer == b"done"
    assert got.read_text() == "load\nrun\n"


def test_a_request_larger_than_a_pipe_arrives_whole() -> None:
    with ProviderProcess(child(_ECHO)) as process:
        process.start_anew("npu")
        answer = process.ask(b"x" * 1_000_000, timeout_s=30.0).answer
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
        ending = process.ask(b"x" * 1_000_000, timeout_s=30.0)
        assert (ending.answer, ending.because) == (None, because)
        assert process.subject == "", "there is nothing left to ask"
        with pytest.raises(ValueError, match="no child runs"):
            process.ask(b"{}", timeout_s=1.0)


def test_a_child_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    grandchild = tmp_path / "pid"
    with ProviderProcess(hanging_child(grandchild)) as process:
        process.start_anew("npu")
        ending = process.ask(b"{}", timeout_s=1.0)
    assert ending.because == "no answer within 1 s"
    assert has_ended(int(grandchild.read_text()))


def test_a_child_whose_parent_is_gone_sees_the_end_of_its_stdin_and_ends() -> None:
    ended = subprocess.run(CHILD, input=b"", capture_output=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (0, b"")

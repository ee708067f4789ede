"""Child processes under measurement: real, small and short."""

import sys
from pathlib import Path

from benchmarks.packager.host import read_busy_s
from benchmarks.packager.measured_child import Measured, last_words, run_measured

_MEGABYTE = 10**6
_CLOCK_TICKS_S = 0.1
"""The kernel counts the machine's time in ticks, a process's own exactly."""


def _run(folder: Path, program: str, *, time_limit_s: float = 60, limit_mb: int = 4000) -> Measured:
    return run_measured(
        [sys.executable, "-c", program],
        folder=folder,
        log=folder / "log.txt",
        time_limit_s=time_limit_s,
        memory_limit_bytes=limit_mb * _MEGABYTE,
    )


def test_a_child_that_ends_is_told_with_its_exit_code_and_last_words(tmp_path: Path) -> None:
    measured = _run(tmp_path, "raise ValueError('no such model')")
    assert (measured.ending, measured.exit_code) == ("ended", 1)
    assert last_words(tmp_path / "log.txt") == "ValueError: no such model"


def test_the_memory_of_grandchildren_counts(tmp_path: Path) -> None:
    grandchild = "import time; held = bytearray(150_000_000); time.sleep(1)"
    program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {grandchild!r}])"
    measured = _run(tmp_path, program)
    assert measured.ending == "ended"
    assert measured.peak_bytes > 150 * _MEGABYTE


def test_the_memory_of_this_process_does_not_count(tmp_path: Path) -> None:
    held = bytearray(b"x") * 150_000_000
    measured = _run(tmp_path, "import time; time.sleep(0.3)")
    assert measured.peak_bytes < len(held) / 2


def test_what_a_child_takes_is_not_counted_as_others(tmp_path: Path) -> None:
    busy_s = read_busy_s()
    measured = _run(tmp_path, "import time\nwhile time.process_time() < 0.5: pass")
    all_s = read_busy_s() - busy_s
    assert measured.cpu_s >= 0.5
    assert 0.0 <= measured.others_s <= all_s - measured.cpu_s + _CLOCK_TICKS_S


def test_a_child_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    measured = _run(tmp_path, "import time; time.sleep(60)", time_limit_s=0.3)
    assert measured.ending == "over the time limit"
    assert measured.wall_s < 30


def test_a_child_that_takes_too_much_memory_is_ended(tmp_path: Path) -> None:
    program = "import time; held = bytearray(300_000_000); time.sleep(60)"
    measured = _run(tmp_path, program, limit_mb=200)
    assert measured.ending == "over the memory limit"


def test_an_exception_of_several_lines_is_told_whole(tmp_path: Path) -> None:
    _run(tmp_path, "raise ValueError('wrong shape:\\n  got 3')")
    assert last_words(tmp_path / "log.txt") == "ValueError: wrong shape: got 3"


def test_last_words_name_files_without_the_folder_of_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_text(f"Load model from {tmp_path}/made/model.onnx failed\n")
    assert last_words(log) == "Load model from made/model.onnx failed"


def test_an_empty_log_has_no_last_words(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_text("\n  \n")
    assert last_words(log) == ""

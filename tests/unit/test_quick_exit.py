"""A process that ends at once still ends its threads, its files and its outputs."""

import subprocess
import sys
from pathlib import Path

import pytest

_PROGRAM = """
import atexit, sys, tempfile, threading, time
from edgepack.quick_exit import run_to_exit

class Freed:
    def __del__(self):
        print("freed")

def main():
    global kept, folder
    kept, folder = Freed(), tempfile.TemporaryDirectory()
    print(folder.name)
    atexit.register(print, "atexit")
    threading.Thread(target=lambda: (time.sleep(0.1), print("thread"))).start()
    {end}

run_to_exit(main)
"""


@pytest.mark.parametrize(
    ("end", "code", "error"),
    [
        ("pass", 0, ""),
        ("sys.exit(3)", 3, ""),
        ("sys.exit('no such file')", 1, "no such file\n"),
        ("raise ValueError('a bug')", 1, "ValueError: a bug\n"),
    ],
)
def test_threads_and_exit_functions_end_and_memory_is_not_freed(
    end: str, code: int, error: str
) -> None:
    command = [sys.executable, "-P", "-c", _PROGRAM.format(end=end)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    folder, *lines = done.stdout.splitlines()
    assert (done.returncode, lines[:2]) == (code, ["thread", "atexit"]), done.stderr
    assert ("freed" in lines) == ("ValueError" in error)
    assert done.stderr.endswith(error)
    assert not Path(folder).exists()


def test_output_that_nobody_reads_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    command = [sys.executable, "-P", "-c", _PROGRAM.format(end="pass")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert b"BrokenPipeError" in process.stderr.read()
    assert process.returncode == 120


def test_a_python_without_the_private_functions_ends_as_usual() -> None:
    program = _PROGRAM.format(end="del atexit._run_exitfuncs; sys.exit(3)")
    command = [sys.executable, "-P", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 3, done.stderr
    assert "freed" in done.stdout

"""A search whose process is killed in the middle of a candidate goes on in the next process."""

import signal
import subprocess
import sys
from pathlib import Path

from edgepack.packager.search.journal import Journal
from tests.unit.packager_search.toys import ToyMaker, search_toy

_ERRORS = {"a": 0.02, "b": 0.3, "c": 0.02, "d": 0.4}
_KILLED_AT = 3

_PROGRAM = """
import os, signal, sys
from pathlib import Path
from edgepack.packager.search.journal import Journal
from tests.unit.packager_search.toys import ToyMaker, search_toy
from tests.unit.packager_search.test_killed import _ERRORS, _KILLED_AT

class Killed(ToyMaker):
    def build(self, spec):
        if len(self.built) + 1 == _KILLED_AT:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().build(spec)

folder = Path(sys.argv[1])
maker = Killed(_ERRORS, {"plain": 1.0})
search_toy(maker, folder / "work", journal=Journal(folder / "out.search" / "toy.jsonl"))
"""


def test_a_search_that_was_killed_with_signal_9_resumes(tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    ended = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(tmp_path)], cwd=root, check=False, timeout=400
    )
    assert ended.returncode == -signal.SIGKILL
    whole = ToyMaker(_ERRORS, {"plain": 1.0})
    expected = search_toy(whole, tmp_path / "whole")

    journal = Journal(tmp_path / "out.search" / "toy.jsonl")
    maker = ToyMaker(_ERRORS, {"plain": 1.0})
    found = search_toy(maker, tmp_path / "resumed", journal=journal)

    assert journal.damaged_lines == 0
    assert maker.built[: len(whole.built) - _KILLED_AT + 1] == whole.built[_KILLED_AT - 1 :]
    assert found.best.path.read_bytes() == expected.best.path.read_bytes()
    assert found.attempts == expected.attempts

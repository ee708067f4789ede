"""What the `edgepack` command sets up before it runs a command."""

import os
import sys

import pytest

from edgepack.cli import run_command

_THREADS = "OPENBLAS_NUM_THREADS"


@pytest.mark.parametrize(("given", "expected"), [(None, "1"), ("4", "4")])
def test_linear_algebra_gets_one_thread_unless_somebody_says_otherwise(
    given: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(_THREADS, given or "")
    if given is None:
        monkeypatch.delenv(_THREADS)
    monkeypatch.setattr(sys, "argv", ["edgepack", "--version"])
    with pytest.raises(SystemExit) as ended:
        run_command()
    assert ended.value.code == 0
    assert os.environ[_THREADS] == expected

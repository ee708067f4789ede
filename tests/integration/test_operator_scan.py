"""The scan of operators lists the wrong operators of the HTP simulator, and nothing else."""

import pytest

from benchmarks.operators.__main__ import main


def test_what_is_spelled_out_is_right_and_as_exported_it_is_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    only = ["--only", "MatMul Tanh", "--profile", "qnn-htp"]
    assert main(only) == 0
    told = capsys.readouterr().out
    assert "4 graphs, 0 operators wrong: none\nnot known so far: none\n" in told
    assert main([*only, "--as-exported"]) == 1
    told = capsys.readouterr().out
    wrong = [line.split()[2] for line in told.splitlines() if "WRONG" in line]
    assert "16x24" in wrong
    assert told.endswith("1 operators wrong: MatMul Tanh\nnot known so far: MatMul Tanh\n")


def test_what_is_known_as_wrong_is_named_and_no_failure(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--only", "ReduceL2 of much", "--profile", "qnn-htp-a8w8"]) == 0
    assert "operators wrong: ReduceL2 of much\nnot known so far: none\n" in capsys.readouterr().out

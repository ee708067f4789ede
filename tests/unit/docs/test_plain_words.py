"""The measure of plain words finds the planted exceptions, and nothing else."""

import subprocess
from pathlib import Path

import pytest
from docs.plain_words import (
    FEWEST_COMMITS,
    LIMITS,
    commit_subjects,
    findings,
    main,
    of_code,
    of_commit,
    of_page,
)

PLAIN = '''"""Chunks of a release."""


def missing_chunks():
    """Return the chunks that the device lacks."""
'''


def exceptions(source: str) -> set[str]:
    return {one.measure for one in of_code(source, "planted.py") if one.exceptions}


def test_plain_module_has_no_exception() -> None:
    assert exceptions(PLAIN) == set()


@pytest.mark.parametrize(
    ("planted", "measure"),
    [
        ("What the device lacks.", "docstring opens with a question word"),
        ("The chunks of a device.", "function opens without a verb"),
        ("Return what lacks.", "relative words in docstrings"),
        ("Return those of it.", "pointing words in docstrings"),
        ("Send the chunks anew.", "odd phrases in docstrings"),
    ],
)
def test_planted_docstring_is_found(planted: str, measure: str) -> None:
    assert measure in exceptions(PLAIN.replace("Return the chunks that the device lacks.", planted))


@pytest.mark.parametrize(
    ("planted", "measure"),
    [
        ("raise BundleError(f'{name} is no bundle')", "odd phrases in errors"),
        ("log.info('told %s', device)", "odd phrases in other messages"),
        ("option('--x', help='Goes on.')", "odd phrases in other messages"),
    ],
)
def test_planted_message_is_found(planted: str, measure: str) -> None:
    assert exceptions(f"{PLAIN}    {planted}\n") == {measure}


def test_planted_page_is_found() -> None:
    page = (
        "# It is no title\n\n```\nit is no text\n```\n\nThere is no file. " + "Words " * 31 + ".\n"
    )
    found = [one.measure for one in of_page(page, "page.md") if one.exceptions]
    assert found == ["long sentences in pages"]
    vague = [one.measure for one in of_page("Send those, whoever asks.\n", "page.md")]
    assert vague.count("relative words in pages") == vague.count("pointing words in pages") == 1


def test_planted_commit_subject_is_found() -> None:
    assert not any(one.exceptions for one in of_commit("fleet: list breached gates first"))
    found = {one.measure for one in of_commit("Gates that are breached come first, " * 3)}
    assert found == {name for name in LIMITS if "commit" in name}


def test_whole_checkout_with_a_planted_docstring_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = tmp_path / "agent" / "planted.py"
    module.parent.mkdir()
    module.write_text(PLAIN)
    monkeypatch.setattr("docs.plain_words.ROOT", tmp_path)
    assert main([]) == 0
    module.write_text(PLAIN.replace("Return the chunks that", "What"))
    assert main([]) == 1
    assert "ABOVE docstring opens with a question word: 50.00 %" in capsys.readouterr().out
    assert main(["--list", "question"]) == 0
    listed = "agent/planted.py:4: What the device lacks.\n"
    assert capsys.readouterr().out == listed
    for path, expected in (("agent/pl", listed), ("fleet/", "")):
        assert main(["--list", "question", path]) == 0
        assert capsys.readouterr().out == expected


def test_few_or_no_commits_are_not_measured(tmp_path: Path) -> None:
    assert commit_subjects(tmp_path) == []
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    assert commit_subjects(tmp_path) == []
    assert not [one for one in findings(tmp_path) if "commit" in one.measure]
    assert FEWEST_COMMITS > 1

"""A decoder of another architecture is exported in a child, and its logits are compared there.

The children here stand in for onnxruntime-genai's builder and PyTorch.
"""

import sys
from importlib import metadata
from pathlib import Path

import pytest

from edgepack.errors import BuildError
from edgepack.packager.progress import silent
from edgepack.packager.source.decoders.export import export_decoder


@pytest.fixture(autouse=True)
def _has_the_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: "1.2")


def _export(folder: Path, program: str) -> str:
    command = (sys.executable, "-P", "-c", f"import sys; sys.stdin.read(); {program}")
    return export_decoder(folder, folder / "out", "OddForCausalLM", silent, command=command)


def test_the_note_has_the_versions_and_the_difference(tmp_path: Path) -> None:
    note = _export(tmp_path, "print('{\"difference\": 5e-06}')")
    assert "onnxruntime-genai 1.2, transformers 1.2, torch 1.2" in note
    assert "by 5e-06 of their standard deviation" in note


def test_an_export_with_other_logits_is_an_error_with_the_difference(tmp_path: Path) -> None:
    problem = r"the export of OddForCausalLM .* is wrong: .* by 1\.301 of .*, and 0\.02 is allowed"
    with pytest.raises(BuildError, match=problem):
        _export(tmp_path, "print('{\"difference\": 1.301}')")


@pytest.mark.parametrize(
    ("program", "problem"),
    [
        ('print(\'{"problem": "KeyError: 3"}\')', "cannot export OddForCausalLM: KeyError: 3"),
        ("import os; os.abort()", "the process crashed with SIGABRT"),
        ("print('{}')", "cannot export OddForCausalLM"),
    ],
)
def test_a_builder_that_fails_is_an_error_with_its_reason(
    tmp_path: Path, program: str, problem: str
) -> None:
    with pytest.raises(BuildError, match=problem) as caught:
        _export(tmp_path, program)
    assert "onnxruntime_genai.models.builder" in str(caught.value.remedy)

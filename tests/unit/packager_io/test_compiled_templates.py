"""Compiled templates are stored next to Python's own, and stale templates are never used."""

from pathlib import Path

import jinja2
import pytest

from edgepack.packager.reports.page import CompiledTemplates


def _render(folder: Path, text: str) -> str:
    environment = jinja2.Environment(
        loader=jinja2.DictLoader({"page": text}),
        autoescape=True,
        bytecode_cache=CompiledTemplates(str(folder / "module.py")),
    )
    return environment.get_template("page").render(name="<x>")


@pytest.fixture(autouse=True)
def _bytecode_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.dont_write_bytecode", False)
    monkeypatch.setattr("sys.pycache_prefix", None)


def test_a_template_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = _render(tmp_path, "Hello {{ name }}")
    assert len(list((tmp_path / "__pycache__").glob("*.jinjac"))) == 1
    monkeypatch.delattr(jinja2.Environment, "compile")
    assert _render(tmp_path, "Hello {{ name }}") == first == "Hello &lt;x&gt;"


def test_a_changed_template_is_compiled_again(tmp_path: Path) -> None:
    _render(tmp_path, "Hello {{ name }}")
    assert _render(tmp_path, "Bye {{ name }}") == "Bye &lt;x&gt;"


def test_a_damaged_file_is_passed_over(tmp_path: Path) -> None:
    _render(tmp_path, "Hello {{ name }}")
    (file,) = (tmp_path / "__pycache__").glob("*.jinjac")
    file.write_bytes(file.read_bytes()[:20])
    assert _render(tmp_path, "Hello {{ name }}") == "Hello &lt;x&gt;"


def test_where_nothing_can_be_written_nothing_is_kept(tmp_path: Path) -> None:
    (tmp_path / "__pycache__").write_text("a file, no folder")
    assert _render(tmp_path, "Hello {{ name }}") == "Hello &lt;x&gt;"

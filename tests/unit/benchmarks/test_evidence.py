"""The list of constants that decide verdicts, and the measurement of their effect."""

import shutil
from pathlib import Path

import pytest

from benchmarks.evidence.constants import FOLDERS, LIST, ROOT, Constant, find_faults, read_list
from benchmarks.evidence.measuring import measure
from benchmarks.evidence.page import Evidence, page
from benchmarks.evidence.recordings import RECIPES, record
from benchmarks.task_kinds.kinds import KINDS


def test_each_constant_that_decides_a_verdict_is_listed() -> None:
    assert find_faults() == []


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the sources, in which every constant is listed."""
    root = tmp_path_factory.mktemp("copied")
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, root / folder)
    assert find_faults(root) == []
    return root


@pytest.mark.parametrize(
    ("line", "is_constant"),
    [
        ("_PLANTED = 0.37", True),
        ("_PLANTED: float = -1 / 3", True),
        ("_PLANTED = (1, (2.5, 3))", True),
        ("_PLANTED = {3: 9.925, 5: 4.604}", True),
        ("_PLANTED = {2, 3}", True),
        ("_PLANTED = True", False),
        ("_PLANTED = ('a', 1)", False),
    ],
)
def test_a_planted_constant_is_found(line: str, is_constant: bool, copied: Path) -> None:
    file = copied / FOLDERS[0] / "values" / "measure.py"
    content = file.read_text()
    file.write_text(f"{content}\n{line}\n")
    faults = find_faults(copied)
    file.write_text(content)
    key = f"{FOLDERS[0]}/values/measure.py:_PLANTED"
    assert [fault.startswith(key) for fault in faults] == [True] * is_constant


def test_stale_double_and_empty_entries_are_faults(tmp_path: Path) -> None:
    key = next(iter(read_list()["bound"]))
    text = LIST.read_text() + '"agent/gone.py:_GONE" = "…"\n'
    for section, entry in (
        ("definition", f'"{key}" = "…"'),
        ("limit", '"agent/gone.py:_OLD" = ""'),
    ):
        text = text.replace(f"[{section}]\n", f"[{section}]\n{entry}\n")
    path = tmp_path / "constants.toml"
    path.write_text(f"{text}\n[guessed]\n")
    faults = "\n".join(find_faults(path=path))
    for part in ("[guessed]", "_GONE is in", f"{key} has two entries", "_OLD has no reason"):
        assert part in faults


def test_a_changed_constant_changes_verdicts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording, declared, *_ = record(KINDS["glyphs"], tmp_path / "glyphs")
    assert len(recording.variants) == len(RECIPES)
    assert (recording.is_declared, declared.is_declared) == (False, True)
    before = tuple(recording.judge())
    broken = RECIPES.index("weights of 5 bits")
    for place in range(broken - 1):
        assert before[place].accepted[place]
        assert not before[place].accepted[broken]
    perfect = Constant("agent/edgepack/tasks/contract.py", "LOSS", 0.01)
    module = "benchmarks.evidence.measuring"
    monkeypatch.setattr(f"{module}.find_constants", lambda: iter([perfect]))
    monkeypatch.setattr(f"{module}.read_list", lambda: {"measured": {perfect.key: "…"}})
    measured = measure([recording, declared])
    assert [name.split()[1] for name in measured.effects] == ["x0.5", "x2"]
    assert tuple(recording.judge()) == before
    assert measured.reads(perfect.key)
    assert not measured.reads(perfect.key[1:])
    assert f"| `{perfect.key}` | none | glyphs |" in page(Evidence(kinds=(measured,)))

"""The list of constants that decide verdicts, and the measurement of their effect."""

import logging
import shutil
import sys
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks.evidence.constants import (
    FOLDERS,
    LIST,
    ROOT,
    Constant,
    find_constants,
    find_faults,
    module_of,
    read_list,
)
from benchmarks.evidence.known import QUESTIONS, Case, ask
from benchmarks.evidence.measuring import measure
from benchmarks.evidence.page import Evidence, page
from benchmarks.evidence.recordings import RECIPES, record
from benchmarks.task_kinds.kinds import KINDS
from edgepack.packager.stages import cache_check


def test_each_constant_that_decides_a_verdict_is_listed() -> None:
    assert find_faults() == []


def test_a_planted_constant_of_each_folder_is_a_fault(tmp_path: Path) -> None:
    for top in ("agent", "fleet", "packager"):
        shutil.copytree(ROOT / top, tmp_path / top, ignore=shutil.ignore_patterns("*.pyc"))
    files = [min((tmp_path / folder).rglob("*.py")) for folder in FOLDERS]
    for file in files:
        file.write_text(f"{file.read_text()}\n_PLANTED = 0.37\n")
    keys = sorted(f"{file.relative_to(tmp_path)}:_PLANTED" for file in files)
    assert [fault.split()[0] for fault in find_faults(tmp_path)] == keys


@pytest.mark.parametrize(
    ("line", "is_constant"),
    [
        ("_PLANTED = 0.37", True),
        ("_PLANTED: float = -1 / 3", True),
        ("_PLANTED = (1, (2.5, 3))", True),
        ("_PLANTED = {3: 9.925, 5: 4.604}", True),
        ("_PLANTED = {2, 3}", True),
        ("_PLANTED, _OTHER = 0.5, 'a'", True),
        ("_PLANTED = {unknown.NAME: 3.0}", True),
        ("_PLANTED_S = 3.0", False),
        ("MAX_PLANTED = 3", False),
        ("_PLANTED = True", False),
        ("_PLANTED = ('a', 1)", False),
    ],
)
def test_a_planted_constant_is_found(line: str, is_constant: bool, tmp_path: Path) -> None:
    file = tmp_path / FOLDERS[0] / "planted.py"
    file.parent.mkdir(parents=True)
    file.write_text(f"{line}\n")
    assert [one.name for one in find_constants(tmp_path)] == ["_PLANTED"] * is_constant


@pytest.mark.parametrize(
    ("line", "is_fault"),
    [
        ("passes = value > 0.97", True),
        ("passes = max(value, 0.97)", True),
        ("def passes(keep=0.97): ...", True),
        ("passes = lambda value, *, keep=0.97: value > keep", True),
        ("class Gate:\n    keep: float = 0.97", True),
        ("class Gate:\n    wait_s: float = 0.97", False),
        ("passes = value > 0.5 and value < 2.0 and size > max(size, 1e-9)", False),
    ],
)
def test_a_number_without_a_name_that_decides_is_a_fault(
    line: str, is_fault: bool, tmp_path: Path
) -> None:
    file = tmp_path / FOLDERS[0] / "planted.py"
    file.parent.mkdir(parents=True)
    file.write_text(f"{line}\n")
    faults = [fault for fault in find_faults(tmp_path) if fault.startswith(f"{FOLDERS[0]}/planted")]
    assert len(faults) == is_fault


def test_a_constant_computed_of_an_imported_one_is_found(tmp_path: Path) -> None:
    for folder, line in (
        (FOLDERS[1], "LOSS = 0.01"),
        (FOLDERS[0], f"from {module_of(FOLDERS[1])}.a import LOSS as LOST\n_PLANTED = 2.0 - LOST"),
    ):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "a.py").write_text(f"{line}\n")
    found = {one.name: one.value for one in find_constants(tmp_path)}
    assert found == {"LOSS": 0.01, "_PLANTED": 1.99}


def test_constants_of_known_answers_are_measured() -> None:
    asked = {key for keys in QUESTIONS.values() for key in keys}
    assert asked <= set(read_list()["measured"])


def test_answers_depend_on_a_changed_constant(monkeypatch: pytest.MonkeyPatch) -> None:
    key = "packager/edgepack/packager/stages/cache_check.py:_MOST_LOST"

    def is_small(lost: float) -> bool:
        return lost <= cache_check._MOST_LOST

    cases = ModuleType("benchmarks.evidence.cases.planted")
    answers = {0.001: True, 0.004: True, 0.05: False, 0.0055: False}
    vars(cases)["QUESTION"] = "Is it small?"
    vars(cases)["cases"] = lambda _: [
        Case(str(lost), "independent", answer, partial(is_small, lost))
        for lost, answer in answers.items()
    ]
    monkeypatch.setitem(sys.modules, cases.__name__, cases)
    monkeypatch.setitem(QUESTIONS, "planted", (key,))
    answered = ask("planted")
    logging.disable(logging.NOTSET)
    assert answered.wrong == {
        "as it is": ("0.004",),
        f"{key} x0.5": ("0.004",),
        f"{key} x2": ("0.0055",),
    }
    tally = answered.tallies[f"{key} x2"]["independent"]
    assert (tally.yes, tally.denied, tally.no, tally.taken) == (2, 0, 2, 1)
    text = page(Evidence(kinds=(), answers={"planted": answered}))
    assert f"| `{key}` | x2 | 2 | 0 | 2 | 1 |" in text
    assert f"- `{key} x2`: 0.0055." in text


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
    package = "benchmarks.evidence"
    monkeypatch.setattr(f"{package}.measuring.find_constants", lambda: iter([perfect]))
    for module in ("measuring", "page"):
        monkeypatch.setattr(
            f"{package}.{module}.read_list", lambda: {"measured": {perfect.key: "…"}}
        )
    measured = measure([recording, declared])
    assert [name.split()[1] for name in measured.effects] == ["x0.5", "x2"]
    assert tuple(recording.judge()) == before
    assert measured.reads(perfect.key)
    assert not measured.reads(perfect.key[1:])
    assert f"| `{perfect.key}` | none | glyphs |" in page(Evidence(kinds=(measured,)))

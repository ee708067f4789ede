"""An interrupted search goes on where it was, and ends as if it had not been interrupted."""

from pathlib import Path
from typing import Any

import pytest

from edgepack.packager.progress import BuildStep, Progress, silent
from edgepack.packager.quantization.contract import CandidateSpec, Measured, NodeSensitivity
from edgepack.packager.search.journal import Journal
from edgepack.packager.search.time_limit import TimeLimit
from edgepack.packager.tensors.sequence import Samples
from tests.unit.packager_search.toys import ToyMaker, search_toy

_ERRORS = {"a": 0.02, "b": 0.3, "c": 0.02, "d": 0.4, "e": 0.02, "f": 0.02}
_METHODS = {"plain": 1.0, "worse": 2.0}


class _KilledError(BaseException):
    """Stands for the signal."""


class _Mortal(ToyMaker):
    """Is killed while it makes the candidate with this number."""

    def __init__(self, dies_at: int) -> None:
        super().__init__(_ERRORS, _METHODS)
        self._dies_at = dies_at

    def build(self, spec):  # type: ignore[no-untyped-def]
        if len(self.built) + 1 == self._dies_at:
            raise _KilledError
        return super().build(spec)


@pytest.mark.parametrize("dies_at", [2, 3, 4, 5])
def test_a_killed_search_measures_nothing_twice_and_ends_with_the_same_bytes(
    tmp_path: Path, dies_at: int
) -> None:
    whole = ToyMaker(_ERRORS, _METHODS)
    expected = search_toy(whole, tmp_path / "whole")
    path = tmp_path / "out.search" / "toy.jsonl"
    with pytest.raises(_KilledError):
        search_toy(_Mortal(dies_at), tmp_path / "killed", journal=Journal(path))

    maker = ToyMaker(_ERRORS, _METHODS)
    found = search_toy(maker, tmp_path / "resumed", journal=Journal(path))

    assert found.best.path.read_bytes() == expected.best.path.read_bytes()
    assert found.attempts == expected.attempts
    assert found.sensitive_nodes == expected.sensitive_nodes
    before = 0 if dies_at == 2 else dies_at - 1  # the first is written with the second
    again = [entry for entry in maker.built if entry in whole.built[:before]]
    assert again in ([], [(found.best.method.id, found.best.float_nodes)])


def test_a_finished_search_is_repeated_without_measuring_anything(tmp_path: Path) -> None:
    path = tmp_path / "out.search" / "toy.jsonl"
    first = search_toy(ToyMaker(_ERRORS, _METHODS), tmp_path / "first", journal=Journal(path))
    size = path.stat().st_size
    maker = ToyMaker(_ERRORS, _METHODS)
    second = search_toy(maker, tmp_path / "second", journal=Journal(path))
    assert maker.built == [(first.best.method.id, first.best.float_nodes)], "only to have the file"
    assert maker.ranked == []
    assert second.best.path.read_bytes() == first.best.path.read_bytes()
    assert path.stat().st_size == size


def test_another_context_reads_nothing_of_it(tmp_path: Path) -> None:
    path = tmp_path / "out.search" / "toy.jsonl"
    first = ToyMaker(_ERRORS, _METHODS)
    search_toy(first, tmp_path / "first", journal=Journal(path))
    second = ToyMaker(_ERRORS, _METHODS)
    search_toy(second, tmp_path / "second", journal=Journal(path), context="other samples")
    assert second.built == first.built
    assert second.ranked == first.ranked


def test_a_search_of_one_candidate_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "out.search" / "toy.jsonl"
    search_toy(ToyMaker({"a": 0.01}, {"plain": 1.0}), tmp_path / "work", journal=Journal(path))
    assert not path.parent.exists()


def test_a_search_that_its_time_ends_keeps_its_only_candidate(tmp_path: Path) -> None:
    path = tmp_path / "out.search" / "toy.jsonl"
    maker = ToyMaker({"a": 3.0}, {"plain": 1.0, "better": 0.1})
    limit = TimeLimit(90.0, lambda: 100.0 if maker.built else 0.0)
    search_toy(maker, tmp_path / "work", journal=Journal(path), limit=limit)
    assert maker.built == [("plain", ())]

    again = ToyMaker({"a": 3.0}, {"plain": 1.0, "better": 0.1})
    told: list[BuildStep] = []
    search_toy(again, tmp_path / "again", journal=Journal(path), progress=told.append)
    outcomes = [step.outcome for step in told if step.outcome]
    assert outcomes[0].startswith("better, "), "what was known is not told again"


def test_a_search_that_is_stopped_keeps_its_only_candidate(tmp_path: Path) -> None:
    path = tmp_path / "out.search" / "toy.jsonl"
    before: list[str] = []

    def stop(step: BuildStep) -> None:
        if step.outcome:
            before.append(step.outcome)
            raise SystemExit(143)

    with pytest.raises(SystemExit):
        search_toy(
            ToyMaker({"a": 3.0}, {"plain": 1.0}),
            tmp_path / "work",
            journal=Journal(path),
            progress=stop,
        )
    told: list[BuildStep] = []
    search_toy(
        ToyMaker({"a": 3.0}, {"plain": 1.0}),
        tmp_path / "again",
        journal=Journal(path),
        progress=told.append,
    )
    assert before[0].startswith("plain, ")
    assert before[0] not in [step.outcome for step in told]


def test_a_ranking_that_is_ended_goes_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "out.search" / "toy.jsonl"
    maker = _SlowToRank({"a": 3.0, "b": 2.0, "c": 4.0}, {"plain": 1.0})
    limit = TimeLimit(90.0, lambda: 100.0 if len(maker.runs) == 2 else 0.0)
    search_toy(maker, tmp_path / "work", journal=Journal(path), limit=limit)
    assert maker.runs == ["a", "b"]
    again = _SlowToRank({"a": 3.0, "b": 2.0, "c": 4.0}, {"plain": 1.0})
    found = search_toy(again, tmp_path / "again", journal=Journal(path))
    assert again.runs == ["c"]
    whole = search_toy(
        _SlowToRank({"a": 3.0, "b": 2.0, "c": 4.0}, {"plain": 1.0}), tmp_path / "whole"
    )
    assert found.sensitive_nodes == whole.sensitive_nodes


class _SlowToRank(ToyMaker):
    """Ranks node by node, and tells after each."""

    def __init__(self, *settings: Any) -> None:
        super().__init__(*settings)
        self.runs: list[str] = []

    def rank(
        self,
        spec: CandidateSpec,
        samples: Samples,
        progress: Progress,
        measured: Measured | None = None,
    ) -> tuple[NodeSensitivity, ...]:
        known = {} if measured is None else measured
        ranked = super().rank(spec, samples, silent)
        for node in sorted(ranked, key=lambda node: node.name):
            if node.name not in known:
                self.runs.append(node.name)
                known[node.name] = node.noise
            progress(BuildStep(what="ranking nodes"))
        return ranked


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda line: line[: len(line) // 2], id="cut short"),
        pytest.param(lambda line: line.replace(b'"lowered":6', b'"lowered":5'), id="changed"),
        pytest.param(lambda line: b"\xff\xfe{", id="no text"),
    ],
)
def test_a_damaged_line_is_passed_over_and_measured_again(tmp_path: Path, damage) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "out.search" / "toy.jsonl"
    first = search_toy(ToyMaker(_ERRORS, _METHODS), tmp_path / "first", journal=Journal(path))
    lines = path.read_bytes().splitlines()
    lines[1] = damage(lines[1])
    path.write_bytes(b"\n".join(lines))  # and the last one without its end

    journal = Journal(path)
    maker = ToyMaker(_ERRORS, _METHODS)
    second = search_toy(maker, tmp_path / "second", journal=journal)

    assert journal.damaged_lines == 1
    assert ("plain", ()) in maker.built
    assert ("worse", ()) not in maker.built
    assert second.best.path.read_bytes() == first.best.path.read_bytes()
    assert Journal(path).damaged_lines == 1, "what was added stands on a line of its own"
    assert any("1 damaged line of" in note for note in second.notes)


@pytest.mark.parametrize(
    "header",
    [
        pytest.param(b'{"journal_version":1}', id="older"),
        pytest.param(b'{"journal_version":99}', id="newer"),
        pytest.param(b'{"sha256":"","entry":{}}', id="without one"),
        pytest.param(b"\xff", id="damaged"),
    ],
)
def test_a_journal_of_another_version_is_left_as_it_is_and_not_used(
    tmp_path: Path, header: bytes
) -> None:
    path = tmp_path / "out.search" / "toy.jsonl"
    first = ToyMaker(_ERRORS, _METHODS)
    search_toy(first, tmp_path / "first", journal=Journal(path))
    _, *lines = path.read_bytes().splitlines(keepends=True)
    content = b"".join((header, b"\n", *lines))
    path.write_bytes(content)

    second = ToyMaker(_ERRORS, _METHODS)
    found = search_toy(second, tmp_path / "second", journal=Journal(path))

    assert second.built == first.built
    assert path.read_bytes() == content
    (note,) = found.notes
    assert note.startswith(f"The search's journal {path} is of another version: ")

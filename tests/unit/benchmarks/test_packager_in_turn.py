"""Our builds take turns with ONNX Runtime's MinMax, and short builds have medians."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.packager import in_turn
from benchmarks.packager.contestants import OWN, Contestant
from benchmarks.packager.in_turn import make_in_turn
from benchmarks.packager.records import Cost, Outcome, Record, Subject

_OURS = Contestant(peer=OWN, setting="cpu", title="edgepack cpu", target="cpu")


def _record(wall_s: float, outcome: Outcome = "made", others_s: float = 0.1) -> Record:
    subject = Subject(
        peer=OWN,
        setting="cpu",
        version="1",
        task="digits",
        model_sha256="00",
        part="development",
        cpu="a CPU",
    )
    return Record(
        subject=subject,
        outcome=outcome,
        wall_s=wall_s,
        cpu_s=2 * wall_s,
        peak_bytes=int(100 * wall_s),
        others_s=others_s,
        measured_at="2026-11-22T09:00:00Z",
        load_average=0.1,
    )


def _made(
    ours: list[Record], references: list[float], monkeypatch: pytest.MonkeyPatch, folder: Path
) -> tuple[Record, list[Path]]:
    """Return the results of builds with given durations, and their folders."""
    made: Iterator[Record] = iter(ours)
    beside: Iterator[float] = iter(references)
    folders: list[Path] = []

    def make(contestant: Contestant, *_: Any) -> Record:
        folders.append(_[-1])
        return next(made)

    def reference(*_: Any) -> Cost:
        wall_s = next(beside)
        return Cost(wall_s=wall_s, cpu_s=wall_s, peak_bytes=int(10 * wall_s), others_s=0.0)

    monkeypatch.setattr(in_turn, "make", make)
    monkeypatch.setattr(in_turn, "measure_reference", reference)
    nothing: Any = None
    record, last = make_in_turn(_OURS, nothing, nothing, nothing, folder)
    assert last == folders[-1], "the model that is judged is the last one"
    assert list(beside) == [], "each turn begins with the reference"
    return record, folders


def test_builds_of_seconds_take_nine_turns(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ours = [_record(wall_s) for wall_s in (1.0, 6.0, 2.0, 1.5, 1.2, 1.1, 9.0, 1.3, 1.4)]
    record, _ = _made(ours, [1.0] * 9, monkeypatch, tmp_path)
    assert record.turns == 9
    assert record.wall_s == 1.4


def test_short_builds_take_three_turns_and_both_tell_medians(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ours = [_record(5.0), _record(3.0, others_s=0.7), _record(4.0)]
    record, folders = _made(ours, [2.0, 9.0, 1.0], monkeypatch, tmp_path)
    assert len(set(folders)) == 3
    assert record.turns == 3
    assert record.cost == Cost(wall_s=4.0, cpu_s=8.0, peak_bytes=400, others_s=0.1)
    assert record.reference == Cost(wall_s=2.0, cpu_s=2.0, peak_bytes=20, others_s=0.0)


@pytest.mark.parametrize("first", [_record(25.0), _record(1.0, "refused"), _record(1.0, "crashed")])
def test_long_builds_and_what_makes_no_model_take_one_turn(
    first: Record, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    record, _ = _made([first], [2.0], monkeypatch, tmp_path)
    assert record.turns == 1
    assert (record.outcome, record.wall_s) == (first.outcome, first.wall_s)

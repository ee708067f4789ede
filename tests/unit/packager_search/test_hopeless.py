"""A candidate with every node lowered that is too slow is not searched on for accuracy."""

from pathlib import Path

import onnx
import pytest

from edgepack.packager.profiles.reading import resolve_profile
from edgepack.packager.profiles.schema import Preference
from edgepack.packager.runtime.evaluator import Evaluator, find_venue
from edgepack.packager.runtime.timing import Turns
from edgepack.packager.search import race
from edgepack.packager.search.race import Race
from tests.unit.packager_passes.models import samples_for, spread_model


@pytest.mark.parametrize(
    ("prefer", "slower_by", "expected"),
    [
        ("speed", 1.1, False),
        ("speed", 1.3, True),
        ("balanced", 1.3, False),
        ("balanced", 1.6, True),
        ("size", 9.0, False),
        ("device", 9.0, False),
    ],
)
def test_what_is_preferred_says_how_slow_is_hopeless(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    prefer: Preference,
    slower_by: float,
    expected: bool,
) -> None:
    model = spread_model(3.0)
    onnx.save(model, tmp_path / "model.onnx")
    profile = resolve_profile("cpu", {"gates": {"prefer": prefer}})
    evaluator = Evaluator(profile, find_venue(profile))
    turns = Turns(times_s=((slower_by,) * 7, (1.0,) * 7))
    monkeypatch.setattr(race, "take_turns", lambda *_, **__: turns)
    raced = Race(tmp_path / "model.onnx", profile, evaluator, samples_for(model, 3))
    assert raced.is_hopeless(tmp_path / "model.onnx") is expected

"""How many samples run on a provider, and which."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from edgepack.agent.runtime.opening import ProviderSettings
from edgepack.bundle.manifest import Placement
from edgepack.packager.pipeline import provider_validation as provider_validation
from edgepack.packager.pipeline.provider_validation import ProviderValidation
from edgepack.packager.profiles.reading import load_profile
from edgepack.packager.progress import silent
from edgepack.packager.runtime.evaluator import Evaluator, Venue
from edgepack.packager.runtime.trial import Trial
from edgepack.packager.search.judge import CandidateJudge
from edgepack.packager.tensors.sequence import Feeds, Samples
from edgepack.tasks.arrays import Tensor
from tests.unit.packager_passes.models import cnn


def sample(index: int) -> Feeds:
    return {"x": np.array([index, 1.0], np.float32)}


def identity(feeds: Feeds) -> dict[str, Tensor]:
    return {"y": feeds["x"]}


@pytest.mark.parametrize(("simulated", "least"), [(True, 2), (False, 4)])
@pytest.mark.parametrize("ran", [4, 8])
def test_of_a_slow_simulator_two_samples_are_told_and_of_a_provider_four_whatever_the_time(
    simulated: bool, least: int, ran: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    asked: list[int] = []

    def run_some(
        model: Path, samples: Samples, settings: ProviderSettings, *, least: int, **_: Any
    ) -> Trial:
        asked.append(least)
        first = samples.pick(range(ran))
        seen.extend(int(feeds["x"][0]) for feeds in first)
        placement = Placement(provider=settings.provider, taken=1, total=1, verified=True)
        return Trial(placement=placement, outputs=tuple(identity(feeds) for feeds in first))

    monkeypatch.setattr(provider_validation, "try_model", run_some)
    profile = load_profile("qnn-htp")
    venue = Venue(is_native=not simulated, is_simulated=simulated, because="a test")
    golden = Samples(count=8, read=sample, source="a test")
    judge = CandidateJudge(identity, golden, profile.gates.accuracy, None)
    stand_in = judge.reference.errors([identity(feeds) for feeds in golden])
    there = ProviderValidation(identity, golden, 8, None, silent).run(
        Path("model.onnx"), Evaluator(profile, venue), stand_in
    )
    assert (asked, seen) == ([least], list(range(ran)))
    assert there is not None
    assert len(there.trial.outputs) == least
    assert (there.seen.errors[0].nrmse, there.refusal) == (0.0, None)


def test_what_is_wrong_in_a_later_sample_alone_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_all(model: Path, samples: Samples, settings: ProviderSettings, **_: Any) -> Trial:
        outputs = [identity(feeds) for feeds in samples]
        outputs[-1] = {"y": np.zeros(2, np.float32)}
        placement = Placement(provider=settings.provider, taken=1, total=1, verified=True)
        return Trial(placement=placement, outputs=tuple(outputs))

    monkeypatch.setattr(provider_validation, "try_model", run_all)
    path = tmp_path / "model.onnx"
    onnx.save(cnn(), path)  # its nodes are looked through for those that are known to be wrong
    profile = load_profile("qnn-htp")
    venue = Venue(is_native=False, is_simulated=True, because="a test")
    golden = Samples(count=8, read=sample, source="a test")
    judge = CandidateJudge(identity, golden, profile.gates.accuracy, None)
    stand_in = judge.reference.errors([identity(feeds) for feeds in golden])
    there = ProviderValidation(identity, golden, 8, None, silent).run(
        path, Evaluator(profile, venue), stand_in
    )
    assert there is not None
    assert there.refusal is not None
    assert "QNNExecutionProvider computes output 'y' with an error of" in there.refusal.problem

"""How many samples run on a provider, and which."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgepack.agent.runtime.opening import ProviderSettings
from edgepack.bundle.manifest import Placement
from edgepack.packager import on_provider
from edgepack.packager.judging.evaluation import Evaluator, Venue
from edgepack.packager.judging.trial import Trial
from edgepack.packager.on_provider import OnProvider
from edgepack.packager.profile.reading import load_profile
from edgepack.packager.progress import silent
from edgepack.packager.samples.sequence import Feeds, Samples, Tensor
from edgepack.packager.search.judge import CandidateJudge


def sample(index: int) -> Feeds:
    return {"x": np.array([index, 1.0], np.float32)}


def identity(feeds: Feeds) -> dict[str, Tensor]:
    return {"y": feeds["x"]}


@pytest.mark.parametrize(("simulated", "least"), [(True, 2), (False, 4)])
@pytest.mark.parametrize("ran", [2, 5, 8])
def test_of_a_slow_simulator_two_samples_are_asked_and_of_a_provider_four_and_those_that_ran_count(
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

    monkeypatch.setattr(on_provider, "try_model", run_some)
    profile = load_profile("qnn-htp")
    venue = Venue(is_native=not simulated, is_simulated=simulated, because="a test")
    golden = Samples(count=8, read=sample, source="a test")
    judge = CandidateJudge(identity, golden, profile.gates.accuracy, None)
    stand_in = judge.reference.distances([identity(feeds) for feeds in golden])
    there = OnProvider(identity, golden, None, silent).run(
        Path("model.onnx"), profile, Evaluator(profile, venue), stand_in
    )
    assert (asked, seen) == ([least], list(range(ran)))
    assert there is not None
    assert there.distances[0].nrmse == 0.0

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


@pytest.mark.parametrize(
    ("simulated", "count", "ran"),
    [
        (True, 8, [0, 1]),
        (False, 8, [0, 1, 2, 3]),
        (True, 1, [0]),
        (False, 3, [0, 1, 2]),
    ],
)
def test_a_slow_simulator_runs_the_first_two_samples_and_a_provider_four(
    simulated: bool, count: int, ran: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def run_exactly(model: Path, samples: Samples, settings: ProviderSettings, **_: Any) -> Trial:
        seen.extend(int(feeds["x"][0]) for feeds in samples)
        placement = Placement(provider=settings.provider, taken=1, total=1, verified=True)
        return Trial(placement=placement, outputs=tuple(identity(feeds) for feeds in samples))

    monkeypatch.setattr(on_provider, "try_model", run_exactly)
    profile = load_profile("qnn-htp")
    venue = Venue(is_native=not simulated, is_simulated=simulated, because="a test")
    golden = Samples(count=count, read=sample, source="a test")
    judge = CandidateJudge(identity, golden, profile.gates.accuracy, None)
    stand_in = judge.reference.distances([identity(feeds) for feeds in golden])
    there = OnProvider(identity, golden, None, silent).run(
        Path("model.onnx"), profile, Evaluator(profile, venue), stand_in
    )
    assert seen == ran
    assert there is not None
    assert there.distances[0].nrmse == 0.0

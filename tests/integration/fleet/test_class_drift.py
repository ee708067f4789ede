"""Classes that become more frequent are seen by name: real build, broker, agent and fleet."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from edgepack.agent import open_model
from edgepack.tasks.arrays import Singles
from tests.graphs import graph_model
from tests.integration.fleet.conftest import Mosquitto, Serve, StartAgent
from tests.integration.fleet.drifting import DriftingDevice
from tests.simulators.building import build_archive

NAMES = ("intact", "scratch", "dent")
AT_BUILD = (0.8, 0.1, 0.1)
IN_FIELD = (0.2, 0.7, 0.1)


def classifier() -> onnx.ModelProto:
    """Return a model from picture [1, 3, 16, 16] to probabilities [1, 3]: the brightest channel
    wins.
    """
    kernel = np.zeros((3, 3, 3, 3), np.float32)
    for channel in range(3):
        kernel[channel, channel] = 1 / 9
    model = graph_model(
        "(float[1,3,16,16] images) => (float[1,3] scores) { "
        "[blur] blurred = Conv<pads=[1,1,1,1]>(images, kernel) [relu] active = Relu(blurred) "
        "[pool] pooled = GlobalAveragePool(active) [flatten] flat = Flatten(pooled) "
        "[classify] logits = Gemm(flat, weights) [softmax] scores = Softmax<axis=-1>(logits) }",
        {"kernel": kernel, "weights": 16 * np.eye(3, dtype=np.float32)},
    )
    helper.set_model_props(model, {"names": str(dict(enumerate(NAMES)))})
    return model


def picture(rng: np.random.Generator, shares: tuple[float, ...]) -> Singles:
    image = rng.uniform(0.1, 0.3, (1, 3, 16, 16))
    image[0, rng.choice(3, p=shares)] += rng.uniform(0.2, 0.5)
    return image.astype(np.float32)


def build(folder: Path, key: Path) -> Path:
    folder.mkdir()
    onnx.save(classifier(), folder / "surfaces.onnx")
    rng = np.random.default_rng(0)
    samples = np.concatenate([picture(rng, AT_BUILD) for _ in range(120)])
    np.savez(folder / "samples.npz", images=samples)
    return build_archive(
        folder / "surfaces.onnx", folder / "samples.npz", key, folder / "surfaces-1.0.0.edgepack"
    )


def test_a_class_that_becomes_frequent_is_shown_by_its_name_on_the_device_and_in_the_fleet(
    mosquitto: Mosquitto,
    serve: Serve,
    start_agent: StartAgent,
    key_prefix: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet = serve("--broker", mosquitto.url)
    device = DriftingDevice(fleet, start_agent, tmp_path, monkeypatch)
    device.commit(build(tmp_path / "built", key_prefix.with_suffix(".key")))
    rng = np.random.default_rng(1)
    with open_model("surfaces", device.state, threads=1, poll_s=0.1) as model:

        def run(shares: tuple[float, ...], count: int) -> None:
            for number in range(count):
                model.run({"images": picture(rng, shares)})
                if number % 20 == 0:
                    model._serving.record.sketches.snapshot()

        run(AT_BUILD, 200)
        fleet.wait_until(lambda: device.status() != [], "the device measured drift")
        assert "'scratch'" not in " ".join(device.status())
        run(IN_FIELD, 800)
        fleet.wait_until(
            lambda: "'scratch'" in " ".join(device.status()), "the device shows the class"
        )
    fleet.wait_until(
        lambda: (drift := device.drift()) is not None and drift.difference > 1.0,
        "the fleet has the drift",
    )
    drift = device.drift()
    assert drift is not None
    words = {one.words: one for one in drift.features}
    assert words["share of 'scratch'"].build == pytest.approx(0.1, abs=0.08)
    assert words["share of 'scratch'"].now > 0.3
    line = next(line for line in device.status() if "'scratch'" in line)
    assert "share of 'scratch' is 0." in line
    assert "share of 'scratch' is 0." in " ".join(device.shown().split())
    told = json.loads(device.shown("--json"))
    assert told["models"][0]["drift"]["features"][0]["words"] == drift.features[0].words
    assert "share of &#39;scratch&#39; is 0." in device.page()
    with open_model("surfaces", device.state, threads=1, poll_s=0.1) as model:

        def show_fog() -> bool:
            for _ in range(100):
                model.run({"images": 0.05 * picture(rng, AT_BUILD)})
            model._serving.record.sketches.snapshot()
            return any("harm: the confidence fell" in line for line in device.status())

        fleet.wait_until(show_fog, "the device states harm without labels")
    fleet.wait_until(
        lambda: (drift := device.drift()) is not None and drift.loss is not None,
        "the fleet has the loss",
    )
    assert "harm: the confidence fell" in device.page()

"""A shadow release with other classes or quantities never answers: real builds, brokers, agents."""

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from edgepack.agent.serving import following as serving
from edgepack.agent.serving.model import Model
from edgepack.fleet.documents.rollouts import Selector
from tests.graphs import graph_model
from tests.integration.fleet.applications import (
    CAMERA_NAMES,
    Applications,
    applications_of,
    start_cameras,
)
from tests.integration.fleet.conftest import (
    FleetProcess,
    Mosquitto,
    Serve,
    StartAgent,
    edgepack,
)
from tests.simulators.building import build_archive
from tests.simulators.waiting import wait_until

CLASSES, WIDTH = 5, 16
BRIGHT = 10.0
"""Real inputs of the classifier are brighter than any sample of the build."""

LEVEL, QUANTITIES = 100.0, 4
"""The level of the quantities: a hundred times their spread, so that unlike values look alike."""

VALUES = '[outputs.y]\ntask = "values"\n'


def classifier(release: int) -> onnx.ModelProto:
    """Return a classifier by a matrix; release 3 adds a score for bright inputs."""
    rng = np.random.default_rng(1)
    values = {
        "weights": rng.standard_normal((WIDTH, CLASSES)),
        "brightness": np.full((WIDTH, 1), 1 / WIDTH),
        "threshold": np.array([-BRIGHT / 2]),
        "error": np.eye(CLASSES)[:1] * (1e6 if release == 3 else 0.0),
    }
    return graph_model(
        f"(float[1,{WIDTH}] x) => (float[1,{CLASSES}] y) {{ "
        "[classify] scores = MatMul(x, weights) [measure] bright = MatMul(x, brightness) "
        "[compare] above = Add(bright, threshold) [cut] only_above = Relu(above) "
        "[err] added = MatMul(only_above, error) [add] logits = Sub(scores, added) "
        "[decide] y = Softmax<axis=-1>(logits) }",
        [numpy_helper.from_array(v.astype(np.float32), name) for name, v in values.items()],
    )


def quantities(release: int) -> onnx.ModelProto:
    """Return a model of quantities; release 2 was trained a little more, and the last layer of
    release 3 is unrelated.
    """
    rng = np.random.default_rng(2)
    first, last, more, unrelated = (
        rng.standard_normal((WIDTH, width)) / WIDTH**0.5
        for width in (WIDTH, QUANTITIES, QUANTITIES, QUANTITIES)
    )
    lasts = {1: last, 2: last + 0.1 * more, 3: unrelated}
    values = {"first": first, "last": lasts[release], "level": np.full(QUANTITIES, LEVEL)}
    return graph_model(
        f"(float[1,{WIDTH}] x) => (float[1,{QUANTITIES}] y) {{ "
        "[enter] hidden = MatMul(x, first) [bend] bent = Tanh(hidden) "
        "[leave] left = MatMul(bent, last) [lift] y = Add(left, level) }",
        [numpy_helper.from_array(v.astype(np.float32), name) for name, v in values.items()],
    )


def bright_input(rng: np.random.Generator) -> np.ndarray:
    """Return an input of class 0; with samples' whole noise, one of 20,000 is of another class."""
    return (0.3 * rng.standard_normal((1, WIDTH)) + BRIGHT).astype(np.float32)


def usual_input(rng: np.random.Generator) -> np.ndarray:
    return rng.standard_normal((1, WIDTH)).astype(np.float32)


class Kind(NamedTuple):
    """A kind of model on some devices.

    Attributes:
        name: Of the model.
        model: Returns release 1, 2 (which gives the same answers) or 3 (which does not).
        real_input: Returns an input of the applications.
        config: Content of edgepack.toml.
        devices: Names of the devices.
        least_wrong: Least share of wrong answers of release 3; of quantities it is .75 on average.
    """

    name: str
    model: Callable[[int], onnx.ModelProto]
    real_input: Callable[[np.random.Generator], np.ndarray]
    config: str
    devices: tuple[str, ...]
    least_wrong: float

    def build(self, folder: Path, key: Path, release: int) -> Path:
        """Build a release with the command, and return the archive."""
        folder.mkdir(exist_ok=True)
        model, config, samples = folder / "m.onnx", folder / "m.toml", folder / "m.npz"
        onnx.save(self.model(release), model)
        config.write_text(self.config)
        np.savez(samples, x=np.random.default_rng(0).standard_normal((200, WIDTH), np.float32))
        archive = folder / f"{self.name}-1.{release}.0.edgepack"
        return build_archive(model, samples, key, archive, "--config", str(config))

    @property
    def selector(self) -> Selector:
        return Selector(kind="devices", devices=self.devices)


KINDS = (
    Kind("shapes", classifier, bright_input, "", CAMERA_NAMES, 1.0),
    Kind("levels", quantities, usual_input, VALUES, CAMERA_NAMES[:1], 0.5),
)

answered: set[str] = set()
"""Models with versions that answered an inference."""


def infer_with(
    real_input: Callable[[np.random.Generator], np.ndarray],
    model: Model,
    rng: np.random.Generator,
    stopping: threading.Event,
) -> None:
    """Run inferences no faster than the shadow release, which has the lowest priority."""
    opened = model._serving
    shadow = opened.shadow
    before = shadow._recorder.snapshot() if shadow else None
    bundle = opened.pointer.bundle
    answered.add(f"{bundle.name}-{bundle.version}")
    opened.run({"x": real_input(rng)})
    while shadow is not None and opened.shadow is shadow:
        if shadow._recorder.snapshot() != before or stopping.wait(0.005):
            return


@pytest.fixture
def applications(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Applications]]:
    """Start applications of each kind with frequent writes of their sketches."""
    monkeypatch.setattr(serving, "SPOOL_S", 0.2)
    with ExitStack() as running:
        yield [
            running.enter_context(applications_of(kind.name, partial(infer_with, kind.real_input)))
            for kind in KINDS
        ]


def reasons_of(fleet: FleetProcess, kind: Kind, state: str) -> set[str]:
    """Return why devices came to a state with a kind of model, by `edgepack fleet events`."""
    shown = json.loads(edgepack(fleet, "fleet", "events", "--limit", "1000", "--json").stdout)
    return {
        event["because"]
        for event in shown
        if event["to_state"] == state and event["bundle"].startswith(kind.name)
    }


def test_a_release_right_on_golden_samples_and_wrong_on_real_inputs_never_answers(
    mosquitto: Mosquitto,
    serve: Serve,
    start_agent: StartAgent,
    applications: list[Applications],
    key_prefix: Path,
    tmp_path: Path,
) -> None:
    fleet = serve("--broker", mosquitto.url)
    key = key_prefix.with_suffix(".key")
    more = "\n[telemetry]\ninterval_s = 0.5\n[shadow]\nshare = 1.0\nbusy_share = 1.0\n"
    start_cameras(fleet, start_agent, tmp_path, more + "spacing_s = 0.01\n")

    def roll_out(release: int, **settings: object) -> list[str]:
        """Roll a release of each kind out, and wait until both rollouts are decided."""
        names = [
            fleet.roll_out(
                kind.build(tmp_path / "built", key, release),
                to=kind.selector,
                waves="100%",
                deadline_s=500.0,
                **settings,
            )
            for kind in KINDS
        ]
        for name in names:
            fleet.wait_for(name, "FINISHED", "PAUSED", "ABORTED")
        return names

    for first in roll_out(1):
        assert fleet.rollout(first).state == "FINISHED", fleet.rollout(first)
    for kind, running in zip(KINDS, applications, strict=True):
        for device in kind.devices:
            running.start(tmp_path / device / "state")
    models = [model for running in applications for model in running.models]
    wait_until(lambda: len(answered) == len(KINDS), "the applications run")

    for name, kind in zip(roll_out(2, soak_s=1.0, shadow=True), KINDS, strict=True):
        assert fleet.rollout(name).state == "FINISHED", fleet.rollout(name)
        wait_until(lambda: f"{kind.name}-1.2.0" in answered, "the next release answers")  # noqa: B023
        accepted = reasons_of(fleet, kind, "ACTIVATING")
        shadowed = [one for one in accepted if one.startswith("shadow first")]
        assert len(shadowed) > 0, accepted
        for one in shadowed:
            agreed, spaced = map(
                int, re.findall(r"(\d+) of (\d+) spaced inferences agreed", one)[0]
            )
            assert agreed == spaced >= 74, one

    for name, kind in zip(roll_out(3, soak_s=1.0, shadow=True), KINDS, strict=True):
        ended, count = fleet.rollout(name), len(kind.devices)
        assert (ended.state, ended.counts) == ("PAUSED", {"FAILED": count}), ended
        reasons = reasons_of(fleet, kind, "ROLLED_BACK")
        assert len(reasons) > 0
        for one in reasons:
            found = re.findall(r"(\d+) of (\d+) spaced inferences differ from 1.2.0", one)
            differ, spaced = map(int, found[0])
            assert differ >= kind.least_wrong * spaced, one
        assert "inferences differ from 1.2.0" in edgepack(fleet, "rollout", "status", name).stdout
    assert answered == {f"{kind.name}-1.{n}.0" for kind in KINDS for n in (1, 2)}, "none of 1.3.0"
    for model in models:
        wait_until(lambda: model._serving.shadow is None, "nothing runs beside it any more")  # noqa: B023

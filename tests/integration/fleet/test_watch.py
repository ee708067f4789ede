"""Releases that go wrong after the commit are left, and reported: real builds, agents, processes.

Release 1.1.0 is right on its golden samples. An input tells it to fail, to give NaN or to be slow,
as a device's own inputs may do.
"""

import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgepack.fleet.documents.devices import ModelView
from edgepack.wire.messages import Watched
from tests.integration.fleet.conftest import (
    CAMERAS,
    FleetProcess,
    Mosquitto,
    StartAgent,
    edgepack,
)
from tests.integration.fleet.dashboard import Visitor
from tests.integration.test_agent_holders import serving
from tests.simulators.building import build_archive
from tests.simulators.watched_application import WIDTH

CLASSES = 5
FAULTS = {"failed": 1, "not_finite": 2, "slow": 3}
DYING = 13
DEVICES = (*FAULTS, "damage", "dying")
SLOW_LAYERS = 3000
SETTINGS = (
    "\n[probe]\ntimeout_s = 400"
    "\n[telemetry]\ninterval_s = 0.2\nsysfs_dir = 'sys'\n[limits]\ncheck_interval_s = 1\n"
    "[watch]\nlook_s = 0.2\nlasting_s = 1\ncalm_s = 1\n"
)


def classifier(*, has_faults: bool) -> onnx.ModelProto:
    """Return a classifier by a matrix; the input `fault` matters only if the release has faults."""
    rng = np.random.default_rng(1)
    values: dict[str, np.ndarray] = {
        "weights": rng.standard_normal((WIDTH, CLASSES)).astype(np.float32),
        "same": np.eye(WIDTH, dtype=np.float32),
        "row": np.zeros((1, CLASSES), np.float32),
        "zero": np.zeros(1, np.float32),
        "one": np.ones(1, np.float32),
        **{name: np.array([n if has_faults else -n]) for name, n in FAULTS.items()},
    }
    slow = [helper.make_node("Identity", ["x"], ["slow0"])]
    layers = SLOW_LAYERS if has_faults else 1
    for number in range(layers):
        slow.append(helper.make_node("MatMul", [f"slow{number}", "same"], [f"slow{number + 1}"]))
    nodes = [
        helper.make_node("Equal", ["fault", "slow"], ["is_slow_row"]),
        helper.make_node("Squeeze", ["is_slow_row"], ["is_slow"]),
        helper.make_node(
            "If",
            ["is_slow"],
            ["passed"],
            then_branch=branch("slow", slow, f"slow{layers}"),
            else_branch=branch("fast", [helper.make_node("Identity", ["x"], ["as"])], "as"),
        ),
        helper.make_node("MatMul", ["passed", "weights"], ["scores"], "classify"),
        helper.make_node("Equal", ["fault", "failed"], ["fails"]),
        helper.make_node("Cast", ["fails"], ["index"], to=TensorProto.INT64),
        helper.make_node("Gather", ["row", "index"], ["nothing"], axis=0),
        helper.make_node("Add", ["scores", "nothing"], ["added"]),
        helper.make_node("Equal", ["fault", "not_finite"], ["is_nan"]),
        helper.make_node("Where", ["is_nan", "zero", "one"], ["factor"]),
        helper.make_node("Div", ["factor", "factor"], ["quotient"]),
        helper.make_node("Mul", ["added", "quotient"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["y"], "decide", axis=-1),
    ]
    graph = helper.make_graph(
        nodes,
        "shapes",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, WIDTH]),
            helper.make_tensor_value_info("fault", TensorProto.INT64, [1]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, CLASSES])],
        [numpy_helper.from_array(value, name) for name, value in values.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def branch(name: str, nodes: list[onnx.NodeProto], output: str) -> onnx.GraphProto:
    value = helper.make_tensor_value_info(output, TensorProto.FLOAT, [1, WIDTH])
    return helper.make_graph(nodes, name, [], [value])


def build(folder: Path, key: Path, number: int) -> Path:
    folder.mkdir(exist_ok=True)
    model, samples = folder / f"model-{number}.onnx", folder / "samples.npz"
    onnx.save(classifier(has_faults=number > 0), model)
    x = np.random.default_rng(0).standard_normal((100, WIDTH)).astype(np.float32)
    np.savez(samples, x=x, fault=np.zeros(100, np.int64))
    return build_archive(model, samples, key, folder / f"shapes-1.{number}.0.edgepack")


class Application:
    """An application that a supervisor starts again whenever it dies."""

    def __init__(self, folder: Path) -> None:
        self._control = folder / "fault"
        self.fault = 0
        self._command = [sys.executable, "-m", "tests.simulators.watched_application"]
        self._command += [str(folder / "state"), str(self._control)]
        self._is_over = False
        self._process: subprocess.Popen[bytes] | None = None
        self.deaths = 0
        self._thread = threading.Thread(target=self._supervise)
        self._thread.start()

    @property
    def fault(self) -> int:
        return int(self._control.read_text())

    @fault.setter
    def fault(self, fault: int) -> None:
        new = self._control.with_suffix(".new")
        new.write_text(str(fault))
        new.rename(self._control)

    def _supervise(self) -> None:
        while not self._is_over:
            self._process = subprocess.Popen(self._command, stderr=subprocess.DEVNULL)
            if self._process.wait() == -9:
                self.deaths += not self._is_over

    def stop(self) -> None:
        self._is_over = True
        if self._process is not None:
            self._process.kill()
        self._thread.join(400)


Applications = dict[str, Application]


@pytest.fixture
def applications() -> Iterator[Applications]:
    running: Applications = {}
    yield running
    for one in running.values():
        one.stop()


def model_of(fleet: FleetProcess, device: str) -> ModelView:
    return fleet.client.device(device).models[0]


def watch_of(fleet: FleetProcess, device: str) -> Watched:
    return model_of(fleet, device).watch or Watched()


def test_release_that_goes_wrong_after_the_commit_is_left_and_the_fleet_shows_the_reason(
    mosquitto: Mosquitto,
    serve: Callable[..., Any],
    start_agent: StartAgent,
    applications: Applications,
    key_prefix: Path,
    tmp_path: Path,
) -> None:
    fleet = serve("--broker", mosquitto.url)
    for device in DEVICES:
        place = tmp_path / device
        fleet.client.enroll(device, group="cameras", folder=place, state_dir=place / "state")
        interval_s = 1.2 if device == "slow" else 60
        own = f"interval_s = {interval_s}\nslowdown = {2 if device == 'slow' else 0}\n"
        with (place / "agent.toml").open("a") as settings:
            settings.write(SETTINGS + own)
        monitor = place / "sys" / "class" / "hwmon" / "hwmon0"
        monitor.mkdir(parents=True)
        (monitor / "power1_input").write_text("5000000\n")
        start_agent(fleet, device)
    built = [build(tmp_path / "built", key_prefix.with_suffix(".key"), n) for n in (0, 1)]
    fleet.wait_until(lambda: fleet.info().online == len(DEVICES), "the agents are online")
    first = fleet.roll_out(built[0], to=CAMERAS, waves="100%")
    fleet.wait_for(first, "FINISHED")
    applications |= {device: Application(tmp_path / device) for device in DEVICES}
    states = [tmp_path / device / "state" for device in DEVICES]
    fleet.wait_until(lambda: all(any(serving(state)) for state in states), "all serve")
    applications["dying"].fault = DYING
    second = fleet.roll_out(built[1], to=CAMERAS, waves="100%", soak_s=1, max_failed_share=1.0)
    fleet.wait_for(second, "FINISHED", "PAUSED", "ABORTED")

    # On a busy machine, the application dies the third time after the soak.
    fleet.wait_until(lambda: model_of(fleet, "dying").state == "ROLLED_BACK", "it is left")
    dying = model_of(fleet, "dying")
    assert (dying.state, dying.active and dying.active.version) == ("ROLLED_BACK", "1.0.0")
    assert "processes that held it died" in dying.because
    assert 3 <= applications["dying"].deaths <= 13
    others = DEVICES[:-1]
    assert {model_of(fleet, device).active.version for device in others} == {"1.1.0"}  # type: ignore[union-attr]
    fleet.wait_until(lambda: fleet.info().inferences.get("finished", 0) > 2000, "all serve")

    for symptom, fault in FAULTS.items():
        applications[symptom].fault = fault
    slots = tmp_path / "damage" / "state" / "slots"
    digest = model_of(fleet, "damage").active.digest  # type: ignore[union-attr]
    (model,) = (slots / digest).glob("model/*/*.onnx")
    content = bytearray(model.read_bytes())
    content[len(content) // 2] ^= 1
    model.write_bytes(content)

    for symptom in FAULTS:
        fleet.wait_until(lambda s=symptom: watch_of(fleet, s).state == "DEGRADED", symptom)
        fleet.wait_until(lambda s=symptom: model_of(fleet, s).state == "ROLLED_BACK", symptom)
        told, serves = watch_of(fleet, symptom), model_of(fleet, symptom).active
        assert told.symptom == symptom
        assert serves is not None
        assert serves.version == "1.0.0"
        assert (told.wanted[-5:], told.chosen[-5:]) == ("1.1.0", "1.0.0")
    words = ("real inferences failed", "real inferences gave NaN", "times as long as before")
    reasons = {symptom: watch_of(fleet, symptom).because for symptom in FAULTS}
    assert all(said in reasons[symptom] for symptom, said in zip(FAULTS, words, strict=True))

    def has_told(state: str) -> bool:
        events = fleet.client.events(limit=1000)
        told = (one for one in events if one.device == "damage" and one.kind == "watch")
        return any(one.to_state == state for one in told)

    fleet.wait_until(lambda: has_told("DEGRADED") and has_told("WATCHING"), "the file is repaired")
    assert model_of(fleet, "damage").state == "COMMITTED"
    assert bytes(content) != model.read_bytes()

    visitor = Visitor(fleet.url).log_in((fleet.data / "token").read_text())
    home = visitor.get("/").text
    needs = home[home.index("Needs attention") : home.index('aria-label="Devices"')]
    for symptom, said in zip(FAULTS, words, strict=True):
        assert said in needs
        page = visitor.get(f"/devices/{symptom}").text
        assert said in page
        assert f"Wanted: {watch_of(fleet, symptom).wanted}" in page
    bearer = f"Bearer {(fleet.data / 'token').read_text().strip()}"

    def metrics() -> str:
        return visitor.get("/metrics", Authorization=bearer).text

    for symptom in FAULTS:
        line = f'edgepack_devices_degraded{{edgepack_symptom="{symptom}"}} 1.0'
        fleet.wait_until(lambda line=line: line in metrics(), f"{symptom}: one is degraded")
    failed = re.findall(r'edgepack_inference_errors_total{.*error_type="failed"} (.+)', metrics())
    assert sum(map(float, failed)) > 0
    energy = fleet.info().energy
    assert 0 < energy["inferences"] <= sum(fleet.info().inferences.values())
    assert 0 < energy["millijoules"] < 5 * len(DEVICES) * 600 * 1000
    assert " J an inference" in edgepack(fleet, "fleet", "info").stdout
    shown = edgepack(fleet, "fleet", "devices", "show", "failed").stdout
    assert "DEGRADED" in shown
    as_json = json.loads(edgepack(fleet, "fleet", "devices", "show", "slow", "--json").stdout)
    assert as_json["models"][0]["watch"]["symptom"] == "slow"

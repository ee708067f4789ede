"""Inferences that fail after the soak are seen: a real build, broker, agent, application, fleet."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgepack.agent import DeviceError, open_model
from edgepack.agent.serving import following
from edgepack.wire.messages import Outcomes
from tests.integration.fleet.conftest import CAMERAS, Mosquitto, StartAgent, edgepack
from tests.integration.fleet.dashboard import Visitor
from tests.simulators.building import build_archive

WIDTH, ROWS = 8, 4


def fragile_model() -> onnx.ModelProto:
    """Return x / |x|² times a row of a table: NaN for zeros, and an error for a missing row."""
    table = np.random.default_rng(1).standard_normal((ROWS, WIDTH)).astype(np.float32)
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["squares"], "square"),
        helper.make_node("ReduceSum", ["squares"], ["size"], "sum", keepdims=1),
        helper.make_node("Div", ["x", "size"], ["unit"], "divide"),
        helper.make_node("Gather", ["table", "row"], ["factors"], "pick", axis=0),
        helper.make_node("Mul", ["unit", "factors"], ["y"], "scale"),
    ]
    graph = helper.make_graph(
        nodes,
        "fragile",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, WIDTH]),
            helper.make_tensor_value_info("row", TensorProto.INT64, [1]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, WIDTH])],
        [numpy_helper.from_array(table, "table")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def build(folder: Path, key: Path) -> Path:
    folder.mkdir()
    onnx.save(fragile_model(), folder / "fragile.onnx")
    rng = np.random.default_rng(0)
    (folder / "samples").mkdir()
    for number in range(40):
        x = rng.standard_normal((1, WIDTH)).astype(np.float32)
        np.savez(folder / "samples" / f"{number:02}.npz", x=x, row=np.array([number % ROWS]))
    return build_archive(
        folder / "fragile.onnx", folder / "samples", key, folder / "fragile-1.0.0.edgepack"
    )


SETTINGS = "\n[telemetry]\ninterval_s = 0.2\n"


def test_failed_inferences_and_nan_after_the_soak_are_counted_and_need_a_person(
    mosquitto: Mosquitto,
    serve: Callable[..., Any],
    start_agent: StartAgent,
    key_prefix: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(following, "SPOOL_S", 0.2)
    fleet = serve("--broker", mosquitto.url)
    place = tmp_path / "cam-1"
    fleet.client.enroll("cam-1", group="cameras", folder=place, state_dir=place / "state")
    with (place / "agent.toml").open("a") as settings:
        settings.write(SETTINGS)
    start_agent(fleet, "cam-1")
    fleet.wait_until(lambda: fleet.info().online == 1, "the agent is online")
    archive = build(tmp_path / "built", key_prefix.with_suffix(".key"))
    rollout = fleet.roll_out(archive, to=CAMERAS, waves="100%", deadline_s=60.0)
    fleet.wait_for(rollout, "FINISHED", timeout_s=120)
    ones, zeros = np.ones((1, WIDTH), np.float32), np.zeros((1, WIDTH), np.float32)
    row = np.array([0])

    def outcomes() -> Outcomes | None:
        found: Outcomes | None = fleet.client.device("cam-1").models[0].outcomes
        return found

    token = (fleet.data / "token").read_text()
    visitor = Visitor(fleet.url).log_in(token)
    with open_model("fragile", place / "state", threads=1) as model:
        for _ in range(100):
            model.run({"x": ones, "row": row})
        fleet.wait_until(lambda: outcomes() == Outcomes(inferences=100), "good ones are told")
        assert fleet.client.device("cam-1").warnings == ()
        assert "Needs attention" in visitor.get("/").text
        assert "gave NaN or infinity" not in visitor.get("/").text
        for _ in range(20):
            assert np.isnan(model.run({"x": zeros, "row": row})["y"]).all()
        for _ in range(80):
            with pytest.raises(DeviceError):
                model.run({"x": ones, "row": np.array([ROWS])})
        told = Outcomes(inferences=200, failed=80, not_finite=20)
        fleet.wait_until(lambda: outcomes() == told, "the bad ones are told")
    reason = (
        "fragile 1.0.0: more than 10% of recent inferences failed, "
        "more than 1% of recent inferences gave NaN or infinity"
    )
    fleet.wait_until(lambda: fleet.client.device("cam-1").warnings == (reason,), "it warns")
    needs = visitor.get("/").text
    assert reason in needs[needs.index("Needs attention") :]
    assert "200 recent inferences 80 failed, 20 gave NaN" in visitor.get("/devices/cam-1").text
    fleet.wait_until(
        lambda: fleet.info().inferences == {"finished": 120, "failed": 80, "not_finite": 20},
        "the fleet counts them",
    )
    metrics = visitor.get("/metrics", Authorization=f"Bearer {token.strip()}").text
    for outcome, count in (("finished", 120), ("failed", 80), ("not_finite", 20)):
        assert f'edgepack_inferences_total{{outcome="{outcome}"}} {count}.0' in metrics
    assert "edgepack_devices_warned 1.0" in metrics
    shown = edgepack(fleet, "fleet", "devices", "show", "cam-1")
    assert reason in " ".join(shown.stdout.split())
    as_json = json.loads(edgepack(fleet, "fleet", "devices", "show", "cam-1", "--json").stdout)
    assert as_json["models"][0]["outcomes"] == {"inferences": 200, "failed": 80, "not_finite": 20}
    assert "80 failed, 20 gave NaN or infinity" in edgepack(fleet, "fleet", "info").stdout

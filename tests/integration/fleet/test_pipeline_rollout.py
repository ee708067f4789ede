"""A pipeline is rolled out: a device fetches the stages that it can run, and runs all of them.

Drift speaks of tokens: the folder has no tokenizer.
"""

from pathlib import Path

import pytest

from edgepack.agent import open_model
from edgepack.bundle.plain_arrays import encode_arrays
from edgepack.packager import build
from tests.integration.fleet.conftest import CAMERAS, Serve, StartAgent
from tests.integration.fleet.drifting import DriftingDevice
from tests.integration.test_encoder_decoders import FOLDERS, RECORDED, draw_sample


def test_device_fetches_and_switches_the_stages_of_its_variant(
    tmp_path: Path,
    key_prefix: Path,
    serve: Serve,
    start_agent: StartAgent,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    samples = tmp_path / "samples"
    samples.mkdir()
    for number in range(18):
        content = encode_arrays(draw_sample("t5", number))
        (samples / f"{number}.npz").write_bytes(content)
    bundle = tmp_path / "t5-1.0.0.edgepack"
    build(
        FOLDERS / "t5",
        profiles=["fp32", "cpu-arm64"],
        calibration=samples,
        key=key_prefix.with_suffix(".key"),
        output=bundle,
    )
    fleet = serve()
    device = DriftingDevice(fleet, start_agent, tmp_path, monkeypatch)
    view = fleet.wait_for(fleet.roll_out(bundle, to=CAMERAS, deadline_s=300.0), "FINISHED")
    assert view.counts == {"COMMITTED": 1}, view
    state = device.state
    with open_model("t5", state, threads=1) as model:
        tokens = model.run(draw_sample("t5", 3))["tokens"]
        assert tokens.tolist()[0] == RECORDED["t5"][3]
        fleet.wait_until(
            lambda: bool(model.run(draw_sample("t5", 0))) and device.drift() is not None,
            "drift of texts is measured",
        )
    assert "t5: share of token group " in device.shown()
    (slot,) = {path.parents[1] for path in state.glob("slots/*/model/*")}
    assert sorted(path.name for path in (slot / "model").iterdir()) == [
        "decoder.fp32",
        "encoder.fp32",
    ]

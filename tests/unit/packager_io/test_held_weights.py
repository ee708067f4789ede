"""Weights of a build's models in shared files, without any other difference."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from edgepack.bundle.keys import generate_key, write_key_pair
from edgepack.packager.graph import held_weights, stored_tensors
from edgepack.packager.graph.held_weights import (
    WeightsFile,
    hold_weights,
    load_held,
    save_for_session,
)
from edgepack.packager.graph.model_files import load_model, open_on_cpu, save_model
from edgepack.packager.pipeline.build import build_bundle as build
from edgepack.packager.pipeline.request import BuildRequest
from edgepack.packager.progress import silent
from tests.unit.packager_io.models import LAYER_WIDTH, save, two_layers


@pytest.fixture
def _low_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_weights, "HELD_FROM_BYTES", 150_000)


def _values(model: onnx.ModelProto) -> dict[str, list[float]]:
    return {
        tensor.name: stored_tensors.values(tensor).ravel().tolist()
        for tensor in model.graph.initializer
    }


@pytest.mark.usefixtures("_low_limit")
def test_held_weights_leave_the_model_and_keep_their_values(tmp_path: Path) -> None:
    held = hold_weights(two_layers(opset=13), tmp_path / "weights")
    assert held.ByteSize() < 2_000, "the graph, the bias and two places"
    assert _values(held) == _values(two_layers(opset=13))
    load_held(held)
    assert held == two_layers(opset=13)


def test_few_weights_stay_in_the_model(tmp_path: Path) -> None:
    model = two_layers(opset=13)
    assert hold_weights(model, tmp_path / "weights") is model
    assert not (tmp_path / "weights").exists()


@pytest.mark.usefixtures("_low_limit")
def test_a_model_for_a_session_shares_the_file_and_computes_the_same(tmp_path: Path) -> None:
    held = hold_weights(two_layers(opset=13), tmp_path / "weights")
    (tmp_path / "session").mkdir()
    path = tmp_path / "session" / "model.onnx"
    save_for_session(held, path)
    assert path.stat().st_size < 2_000
    assert (tmp_path / "session" / "model.0.data").samefile(tmp_path / "weights")
    assert _values(held) == _values(two_layers(opset=13)), "the model itself is unchanged"
    save(two_layers(opset=13), tmp_path / "whole.onnx")
    feeds = {"x": np.linspace(-1, 1, LAYER_WIDTH, dtype=np.float32)[None]}
    got, expected = (
        open_on_cpu(each).run(None, feeds)[0] for each in (path, tmp_path / "whole.onnx")
    )
    np.testing.assert_array_equal(got, expected)


@pytest.mark.usefixtures("_low_limit")
def test_weights_of_two_files_are_both_beside_a_model_for_a_session(tmp_path: Path) -> None:
    held = hold_weights(two_layers(opset=13), tmp_path / "weights")
    with WeightsFile(tmp_path / "more") as more:
        held.graph.initializer[0].CopyFrom(
            more.kept(
                numpy_helper.from_array(np.zeros((LAYER_WIDTH, LAYER_WIDTH), np.float32), "w0")
            )
        )
    path = tmp_path / "model.onnx"
    save_for_session(held, path)
    feeds = {"x": np.ones((1, LAYER_WIDTH), np.float32)}
    got = open_on_cpu(path).run(None, feeds)[0]
    second = numpy_helper.to_array(two_layers(opset=13).graph.initializer[1])
    np.testing.assert_allclose(got, np.ones((1, LAYER_WIDTH), np.float32) @ second, rtol=1e-4)


@pytest.mark.usefixtures("_low_limit")
def test_a_file_system_without_links_gets_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, target: Path) -> None:
        raise OSError(f"{self} cannot be a link to {target}")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    held = hold_weights(two_layers(opset=13), tmp_path / "weights")
    save_for_session(held, tmp_path / "model.onnx")
    assert not (tmp_path / "model.0.data").samefile(tmp_path / "weights")
    assert _values(load_model(tmp_path / "model.onnx")) == _values(two_layers(opset=13))


@pytest.mark.usefixtures("_low_limit")
def test_a_model_that_is_shipped_is_one_file(tmp_path: Path) -> None:
    save_model(hold_weights(two_layers(opset=13), tmp_path / "weights"), tmp_path / "model.onnx")
    (tmp_path / "weights").unlink()
    assert onnx.load(tmp_path / "model.onnx") == two_layers(opset=13)


def _build(folder: Path, profile: str) -> onnx.ModelProto:
    folder.mkdir()
    save(two_layers(opset=13), folder / "layers.onnx")
    private, _ = write_key_pair(generate_key(), folder / "release")
    own = folder / "always.toml"
    own.write_text(
        f'[profile]\nname = "always"\nextends = "{profile}"\n[gates]\nfloat_instead = []\n'
    )
    request = BuildRequest(
        model=folder / "layers.onnx",
        output=folder / "out",
        name="layers",
        version="1.0.0",
        release=1,
        profiles=(str(own),),
        key=private,
        calibration="random:8",
        allow_degraded=True,
    )
    build(request, silent)
    variant = folder / "out" / "model" / "always"
    assert [path.name for path in variant.iterdir()] == ["model.onnx"]
    return onnx.load(variant / "model.onnx")


@pytest.mark.parametrize("profile", ["cpu", "vitisai-xint8"])
def test_a_build_makes_the_same_model_whether_weights_are_held_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, profile: str
) -> None:
    expected = _build(tmp_path / "in-memory", profile)
    monkeypatch.setattr(held_weights, "HELD_FROM_BYTES", 150_000)
    got = _build(tmp_path / "held", profile)
    assert "DequantizeLinear" in {node.op_type for node in got.graph.node}
    assert got == expected

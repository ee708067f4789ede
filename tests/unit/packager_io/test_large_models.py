"""A model beyond protobuf's 2 GB is built with its weights in files; here the limit is lower."""

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from edgepack.bundle.keys import generate_key, load_public_key, write_key_pair
from edgepack.bundle.verify import verify_folder
from edgepack.errors import BuildError
from edgepack.packager.graph import model_files, stored_tensors
from edgepack.packager.graph.model_files import load_model, open_on_cpu, save_model
from edgepack.packager.pipeline.build import build_bundle as build
from edgepack.packager.pipeline.request import BuildRequest
from edgepack.packager.progress import silent
from edgepack.packager.source.model import load_source
from tests.unit.packager_io.models import (
    LAYER_WIDTH,
    save,
    save_with_external_data,
    small_cnn,
    two_layers,
)


@pytest.fixture(autouse=True)
def _low_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_files, "EXTERNAL_ABOVE_BYTES", 150_000)


def _external(folder: Path, **options: bool) -> Path:
    folder.mkdir()
    return save_with_external_data(two_layers(**options), folder / "model.onnx")


def test_the_weights_of_a_large_source_are_not_loaded(tmp_path: Path) -> None:
    source = load_source(_external(tmp_path / "in"))
    assert source.model.ByteSize() < 10_000
    for tensor, expected in zip(
        source.model.graph.initializer, two_layers().graph.initializer, strict=True
    ):
        np.testing.assert_array_equal(
            stored_tensors.values(tensor), numpy_helper.to_array(expected)
        )
    assert [stored_tensors.is_held(tensor) for tensor in source.model.graph.initializer] == [
        True,
        True,
        False,
    ]


def test_a_small_source_is_loaded(tmp_path: Path) -> None:
    path = save_with_external_data(small_cnn(), tmp_path / "model.onnx")
    assert all(tensor.raw_data for tensor in load_source(path).model.graph.initializer)


def test_nan_is_found_in_weights_that_stay_in_their_file(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="1 of 25,600 values of weight 'w1' are NaN"):
        load_source(_external(tmp_path / "in", nan=True))


def test_a_large_model_is_saved_with_external_data_the_same_each_time(tmp_path: Path) -> None:
    contents = []
    for name in ("a", "b"):
        path = tmp_path / name / "model.onnx"
        path.parent.mkdir()
        written = save_model(two_layers(), path)
        weights = path.with_suffix(".data")
        assert written == path.stat().st_size + weights.stat().st_size
        contents.append((path.read_bytes(), weights.read_bytes()))
    assert contents[0] == contents[1]
    feeds = {"x": np.ones((1, LAYER_WIDTH), np.float32)}
    got = open_on_cpu(tmp_path / "a" / "model.onnx").run(None, feeds)[0]
    save(two_layers(), tmp_path / "whole.onnx")
    expected = open_on_cpu(tmp_path / "whole.onnx").run(None, feeds)[0]
    np.testing.assert_allclose(
        got, expected, atol=1e-5
    )  # packed weights are summed in another order


def test_weights_that_are_in_a_file_already_are_not_written_again(tmp_path: Path) -> None:
    source = load_source(_external(tmp_path / "in"))
    save_model(source.model, tmp_path / "out.onnx")
    assert (tmp_path / "out.data").samefile(tmp_path / "in" / "weights.bin")
    save_model(load_model(tmp_path / "out.onnx"), tmp_path / "out.onnx")  # over itself
    assert (tmp_path / "out.data").samefile(tmp_path / "in" / "weights.bin")
    assert not source.model.graph.initializer[0].HasField("raw_data"), "the source is unchanged"


def test_weights_of_several_files_are_gathered(tmp_path: Path) -> None:
    path = _external(tmp_path / "in")
    model = onnx.load(path, load_external_data=False)
    shutil.copy(tmp_path / "in" / "weights.bin", tmp_path / "in" / "second.bin")
    for entry in model.graph.initializer[1].external_data:
        if entry.key == "location":
            entry.value = "second.bin"
    save(model, path)
    save_model(load_source(path).model, tmp_path / "out.onnx")
    for tensor, expected in zip(
        load_model(tmp_path / "out.onnx").graph.initializer,
        two_layers().graph.initializer,
        strict=True,
    ):
        np.testing.assert_array_equal(
            stored_tensors.values(tensor), numpy_helper.to_array(expected)
        )


def test_a_model_that_became_small_is_one_file_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = load_source(_external(tmp_path / "in"))
    monkeypatch.setattr(model_files, "EXTERNAL_ABOVE_BYTES", 1_000_000)
    save_model(source.model, tmp_path / "out.onnx")
    assert not (tmp_path / "out.data").exists()
    onnx.checker.check_model(str(tmp_path / "out.onnx"))
    assert open_on_cpu(tmp_path / "out.onnx").get_outputs()[0].name == "y"


def _build(folder: Path, model: Path, profile: str) -> Path:
    private, public = write_key_pair(generate_key(), folder / "release")
    output = folder / "layers-1.0.0"
    request = BuildRequest(
        model=model,
        output=output,
        name="layers",
        version="1.0.0",
        release=1,
        profiles=(profile,),
        key=private,
        calibration="random:8",
        allow_degraded=True,
    )
    build(request, silent)
    assert verify_folder(output, [load_public_key(public)]).manifest.facts.name == "layers"
    return output / "model"


def test_a_large_float_model_is_built_with_external_data(tmp_path: Path) -> None:
    variant = _build(tmp_path, _external(tmp_path / "in"), "fp32") / "fp32"
    assert sorted(path.name for path in variant.iterdir()) == ["model.data", "model.onnx"]
    weights = variant / "model.data"
    assert not weights.samefile(tmp_path / "in" / "weights.bin"), "the bundle has its own copy"


def test_a_large_model_is_optimized_and_quantized_from_its_file(tmp_path: Path) -> None:
    profile = tmp_path / "always.toml"
    profile.write_text('[profile]\nname = "always"\nextends = "cpu"\n[gates]\nfloat_instead = []\n')
    variant = _build(tmp_path, _external(tmp_path / "in"), str(profile)) / "always"
    assert [path.name for path in variant.iterdir()] == ["model.onnx"], "a quarter of the size"
    operators = {node.op_type for node in onnx.load(variant / "model.onnx").graph.node}
    assert "DequantizeLinear" in operators

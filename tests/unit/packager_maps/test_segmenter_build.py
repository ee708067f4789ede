"""A whole build of a segmenter: told, judged and shown by its areas."""

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from edgepack.bundle.accuracy_words import describe_accuracy
from edgepack.bundle.keys import generate_key, write_key_pair
from edgepack.errors import BuildError
from edgepack.packager import build
from tests.unit.packager_maps.colours import SIDE, draw_pictures, draw_segmenter


def _declare(folder: Path, name: str, task: str) -> Path:
    path = folder / "edgepack.toml"
    path.write_text(f'[outputs.{name}]\ntask = "{task}"\n')
    return path


def test_a_segmenter_is_built_and_judged_by_its_areas(tmp_path: Path) -> None:
    onnx.save(draw_segmenter(), tmp_path / "colours.onnx")
    write_key_pair(generate_key(), tmp_path / "release")
    result = build(
        tmp_path / "colours.onnx",
        profiles=["vitisai-a8w8"],
        calibration=draw_pictures(60),
        key=tmp_path / "release.key",
        output=tmp_path / "colours-1.0.0",
        config=_declare(tmp_path, "areas", "segmentation"),
    )
    variant = result.variants["vitisai-a8w8"]
    assert (variant.accuracy.metric, variant.accuracy.budget) == ("mean_iou", 0.99)
    assert variant.accuracy.value >= 0.99
    assert variant.accuracy.details["mean_iou"] >= 0.99
    assert describe_accuracy(variant.accuracy).startswith("mean_iou ")
    assert any(note.startswith("Output 'areas': least at class ") for note in variant.notes)


def test_what_looks_like_a_map_is_asked_for_in_the_report(tmp_path: Path) -> None:
    onnx.save(draw_segmenter(kinds=1), tmp_path / "colours.onnx")
    write_key_pair(generate_key(), tmp_path / "release")
    result = build(
        tmp_path / "colours.onnx",
        profiles=["fp32"],
        calibration=draw_pictures(20),
        key=tmp_path / "release.key",
        output=tmp_path / "colours-1.0.0",
    )
    notes = " ".join(result.report.notes)
    assert (
        "Output 'areas' looks like a map of the picture, and nothing tells of which kind" in notes
    )


def test_a_picture_of_whole_numbers_is_refused_as_one(tmp_path: Path) -> None:
    model = draw_segmenter()
    model.graph.node.append(helper.make_node("ArgMax", ["areas"], ["chosen"], axis=1, name="best"))
    del model.graph.output[:]
    model.graph.output.append(
        helper.make_tensor_value_info("chosen", TensorProto.INT64, [1, 1, SIDE, SIDE])
    )
    onnx.save(model, tmp_path / "colours.onnx")
    write_key_pair(generate_key(), tmp_path / "release")
    with pytest.raises(BuildError, match="holds int64: picture are floats"):
        build(
            tmp_path / "colours.onnx",
            profiles=["fp32"],
            calibration=draw_pictures(20),
            key=tmp_path / "release.key",
            output=tmp_path / "colours-1.0.0",
            config=_declare(tmp_path, "chosen", "picture"),
        )

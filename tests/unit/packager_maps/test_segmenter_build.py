"""A whole build of a segmenter: told, judged and shown by its areas."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgepack.bundle.keys import generate_key, write_key_pair
from edgepack.errors import BuildError
from edgepack.packager import build

_SIDE = 48


def _colours(kinds: int = 3) -> onnx.ModelProto:
    """A class for each place: by which of the colours is the brightest around it."""
    weights = {
        "around": np.stack(
            [np.stack([np.full((3, 3), i == j) for j in range(3)]) for i in range(3)]
        )
        / 9,
        "classes": np.eye(kinds, 3)[..., None, None] * 40,
    }
    nodes = [
        helper.make_node("Conv", ["picture", "around"], ["a"], pads=[1, 1, 1, 1], name="around"),
        helper.make_node("Relu", ["a"], ["b"], name="relu"),
        helper.make_node("Conv", ["b", "classes"], ["areas"], name="classes"),
    ]
    sizes = {"picture": [1, 3, _SIDE, _SIDE], "areas": [1, kinds, _SIDE, _SIDE]}
    picture, areas = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, size) for name, size in sizes.items()
    )
    stored = [numpy_helper.from_array(v.astype(np.float32), name) for name, v in weights.items()]
    graph = helper.make_graph(nodes, "colours", [picture], [areas], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _pictures(count: int) -> list[dict[str, npt.NDArray[np.float32]]]:
    """A square of each of two colours before the third."""
    pictures = []
    for number in range(count):
        rng = np.random.default_rng(number)
        colours = np.zeros((_SIDE, _SIDE), np.int64)
        for colour in (1, 2):
            top, left = rng.integers(0, _SIDE - 20, 2)
            colours[top : top + 20, left : left + 20] = colour
        picture = 0.7 * np.moveaxis(np.eye(3)[colours], -1, 0)
        picture += rng.normal(0, 0.05, picture.shape)
        pictures.append({"picture": picture[None].astype(np.float32)})
    return pictures


def _declare(folder: Path, name: str, kind: str) -> Path:
    path = folder / "edgepack.toml"
    path.write_text(f'[outputs.{name}]\nkind = "{kind}"\n')
    return path


def test_a_segmenter_is_built_and_judged_by_its_areas(tmp_path: Path) -> None:
    onnx.save(_colours(), tmp_path / "colours.onnx")
    write_key_pair(generate_key(), tmp_path / "release")
    result = build(
        tmp_path / "colours.onnx",
        profiles=["vitisai-a8w8"],
        calibration=_pictures(60),
        key=tmp_path / "release.key",
        output=tmp_path / "colours-1.0.0",
        config=_declare(tmp_path, "areas", "segmentation"),
    )
    variant = result.variants["vitisai-a8w8"]
    assert (variant.accuracy.metric, variant.accuracy.budget) == ("mean_iou", 0.99)
    assert variant.accuracy.value >= 0.99
    assert any(note.startswith("Output 'areas': least at class ") for note in variant.notes)


def test_what_looks_like_a_map_is_asked_for_in_the_report(tmp_path: Path) -> None:
    onnx.save(_colours(kinds=1), tmp_path / "colours.onnx")
    write_key_pair(generate_key(), tmp_path / "release")
    result = build(
        tmp_path / "colours.onnx",
        profiles=["fp32"],
        calibration=_pictures(20),
        key=tmp_path / "release.key",
        output=tmp_path / "colours-1.0.0",
    )
    notes = " ".join(result.report.notes)
    assert (
        "Output 'areas' looks like a map of the picture, and nothing tells of which kind" in notes
    )


def test_a_picture_of_whole_numbers_is_refused_as_one(tmp_path: Path) -> None:
    model = _colours()
    model.graph.node.append(helper.make_node("ArgMax", ["areas"], ["chosen"], axis=1, name="best"))
    del model.graph.output[:]
    model.graph.output.append(
        helper.make_tensor_value_info("chosen", TensorProto.INT64, [1, 1, _SIDE, _SIDE])
    )
    onnx.save(model, tmp_path / "colours.onnx")
    write_key_pair(generate_key(), tmp_path / "release")
    with pytest.raises(BuildError, match="holds int64: image are floats"):
        build(
            tmp_path / "colours.onnx",
            profiles=["fp32"],
            calibration=_pictures(20),
            key=tmp_path / "release.key",
            output=tmp_path / "colours-1.0.0",
            config=_declare(tmp_path, "chosen", "image"),
        )

"""Recognition of boxes by graph, metadata or declaration."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgepack.errors import BuildError
from edgepack.packager.config.outputs import OutputDeclaration, check_outputs, declared_parts
from edgepack.packager.gates.accuracy import Reference
from edgepack.packager.graph.detection_heads import find_detection_head
from edgepack.packager.graph.shape_inference import infer
from edgepack.packager.progress import silent
from edgepack.packager.source.model import SourceModel, load_source
from edgepack.packager.tasks.describe import describe
from edgepack.packager.tasks.detections import with_detection_head
from edgepack.packager.tensors.sequence import Samples
from edgepack.tasks.arrays import Outputs
from edgepack.tasks.description import ModelDescription
from edgepack.tasks.detections.layouts import DetectionHead, LayoutName
from edgepack.tasks.values.parts import boxes_in

_Shape = list[int]


def _graph(
    nodes: list[onnx.NodeProto],
    outputs: dict[str, _Shape],
    weights: dict[str, np.ndarray] | None = None,
    metadata: dict[str, str] | None = None,
) -> onnx.ModelProto:
    """Return a model of a picture of 320 x 320."""
    graph = helper.make_graph(
        nodes,
        "detector",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, 320, 320])],
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
            for name, shape in outputs.items()
        ],
        [
            numpy_helper.from_array(value.astype(value.dtype), name)
            for name, value in (weights or {}).items()
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    for key, value in (metadata or {}).items():
        model.metadata_props.add(key=key, value=value)
    return model


def _places(name: str, shape: _Shape, *, last: str = "Add") -> list[onnx.NodeProto]:
    """Return a convolution, brought to a shape, with an operator behind."""
    ends = {"Add": ["flat_" + name, "one"], "Sigmoid": ["flat_" + name]}
    return [
        helper.make_node("Conv", ["image", "kernel"], ["map_" + name]),
        helper.make_node("Flatten", ["map_" + name], ["row_" + name]),
        helper.make_node("Expand", ["row_" + name, "wide_" + name], ["wide_row_" + name]),
        helper.make_node("Reshape", ["wide_row_" + name, "shape_" + name], ["flat_" + name]),
        helper.make_node(last, ends[last], [name]),
    ]


def _rows(
    shapes: dict[str, tuple[_Shape, str]], metadata: dict[str, str] | None = None
) -> onnx.ModelProto:
    weights = {"kernel": np.ones((1, 3, 320, 320), np.float32), "one": np.ones(1, np.float32)}
    nodes: list[onnx.NodeProto] = []
    for name, (shape, last) in shapes.items():
        nodes += _places(name, shape, last=last)
        weights["shape_" + name] = np.array(shape, np.int64)
        weights["wide_" + name] = np.array([1, int(np.prod(shape))], np.int64)
    outputs = {name: shape for name, (shape, _) in shapes.items()}
    return _graph(nodes, outputs, weights, metadata)


def _found(model: onnx.ModelProto) -> tuple[str, tuple[str, ...]]:
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    head = find_detection_head(infer(model), metadata).head
    return (head.layout, head.outputs) if head else ("", ())


@pytest.mark.parametrize(
    ("shapes", "layout"),
    [
        ({"y": ([1, 84, 2100], "Add")}, "yolo"),
        ({"y": ([1, 6300, 85], "Add")}, "yolo-objectness"),
        ({"y": ([1, 2100, 85], "Add")}, "yolo-objectness"),
        ({"y": ([1, 2100, 85], "Sigmoid")}, "yolox"),
        ({"y": ([1, 2000, 85], "Add")}, ""),
        ({"y": ([1, 2100, 5], "Add")}, ""),
        ({"boxes": ([1, 3000, 4], "Add"), "scores": ([1, 3000, 21], "Sigmoid")}, "ssd"),
        ({"boxes": ([1, 2100, 4], "Add"), "scores": ([1, 80, 2100], "Sigmoid")}, "ssd"),
        ({"boxes": ([1, 300, 4], "Sigmoid"), "scores": ([1, 300, 92], "Add")}, "detr"),
        ({"boxes": ([1, 50, 4], "Add"), "scores": ([1, 50, 21], "Add")}, ""),
        ({"logits": ([1, 1000], "Add")}, ""),
    ],
)
def test_sizes_and_operators_tell_the_layout(
    shapes: dict[str, tuple[_Shape, str]], layout: str
) -> None:
    assert _found(_rows(shapes)) == (layout, tuple(shapes) if layout else ())


def _levels(score: str = "Sigmoid", sides: int = 32) -> onnx.ModelProto:
    """Return scores and sides of three levels, in PicoDet's form."""
    shapes: dict[str, tuple[_Shape, str]] = {}
    for stride in (8, 16, 32):
        places = (320 // stride) ** 2
        shapes[f"scores{stride}"] = ([1, places, 5], score)
        shapes[f"sides{stride}"] = ([1, places, sides], "Add")
    return _rows(shapes)


_OF_LEVELS = tuple(f"{role}{stride}" for role in ("scores", "sides") for stride in (8, 16, 32))


def test_scores_and_distributions_of_each_level_are_a_detectors() -> None:
    assert _found(_levels()) == ("gfl", _OF_LEVELS)
    assert _found(_levels(score="Add")) == ("", ())
    assert _found(_levels(sides=33)) == ("", ())


def test_declared_values_that_the_graph_gives_as_boxes_make_a_weak_verdict(
    tmp_path: Path,
) -> None:
    declarations = {name: OutputDeclaration(task="values") for name in _OF_LEVELS}
    source = _source(_levels(), tmp_path).with_parts(*declared_parts(declarations))
    judged = with_detection_head(source, declarations)
    (part,) = judged.description.parts
    rng = np.random.default_rng(0)
    expected: list[Outputs] = [
        {name: rng.normal(0, 1, (1, 4, 5)).astype(np.float32) for name in _OF_LEVELS}
        for _ in range(10)
    ]
    description = ModelDescription(parts=(part,))
    verdict = Reference(expected, {}, description).judge(expected)
    assert verdict.passed
    (doubt,) = verdict.weak
    assert "declared 'values'" in doubt
    assert "layout 'gfl'" in doubt
    assert "--metric" in doubt
    plain = ModelDescription(parts=(part.without_settings(),))
    assert Reference(expected, {}, plain).judge(expected).weak == ()


@pytest.mark.parametrize("task", ["values", "picture", "segmentation"])
def test_four_maps_beside_maps_of_scores_are_a_detectors(task: str, tmp_path: Path) -> None:
    maps: dict[str, tuple[_Shape, str]] = {
        "scores": ([1, 3, 40, 40], "Sigmoid"),
        "sides": ([1, 4, 40, 40], "Add"),
    }
    assert find_detection_head(infer(_rows(maps)), {}).unknown == ("sides",)
    assert not find_detection_head(infer(_rows({**maps, "scores": maps["sides"]})), {}).unknown
    declarations = {"sides": OutputDeclaration(task=task)}
    source = _source(_rows(maps), tmp_path).with_parts(*declared_parts(declarations))
    judged = with_detection_head(source, declarations)
    rng = np.random.default_rng(0)
    expected: list[Outputs] = [
        {name: rng.normal(0, 1, shape).astype(np.float32) for name, (shape, _) in maps.items()}
        for _ in range(10)
    ]
    doubts = " ".join(Reference(expected, {}, judged.description).judge(expected).weak)
    assert f"'sides' is declared '{task}'" in doubts
    assert "[outputs.sides]" not in doubts


@pytest.mark.parametrize("task", ["values", "sums", "depth", "embedding"])
def test_boxes_beside_scores_that_are_declared_otherwise_make_a_weak_verdict(
    tmp_path: Path, task: str
) -> None:
    rng = np.random.default_rng(0)
    boxes = rng.uniform(20.0, 80.0, (40, 1, 4, 144))
    scores = rng.uniform(0.0, 0.9, (40, 1, 3, 144)) * (rng.uniform(size=(40, 1, 1, 144)) < 0.05)
    expected: list[Outputs] = [
        {"y": np.concatenate([*pair], axis=1).astype(np.float32)}
        for pair in zip(boxes, scores, strict=True)
    ]
    shift = np.float32(2.0) * (np.arange(7) < 4).astype(np.float32)[:, None]
    moved: list[Outputs] = [{"y": np.add(outputs["y"], shift)} for outputs in expected]
    source = _source(_rows({"y": ([1, 7, 144], "Add")}), tmp_path)
    source = source.with_parts(*declared_parts({"y": OutputDeclaration(task=task)}))
    samples = Samples(
        count=40, read=lambda index: {"n": np.full(1, index, np.float32)}, source="drawn"
    )
    found = describe(source, samples, lambda feeds: expected[int(feeds["n"][0])], silent)
    (doubt,) = Reference(expected, {}, found.description).judge(moved).weak
    assert "[outputs.y] task = 'detections' and its layout" in doubt
    assert "--metric" in doubt
    assert Reference(expected, {}, found.description).judge(expected).weak == ()
    dense = [{"y": outputs["y"]} for outputs in expected]
    for outputs in dense:
        outputs["y"] = np.concatenate([outputs["y"][:, :4], rng.uniform(0.3, 0.9, (1, 3, 144))], 1)
    assert boxes_in(expected, ("y",)) == ("y",)
    assert boxes_in(dense, ("y",)) == ()


def test_the_exporters_metadata_tell_classes_and_leave_masks_aside() -> None:
    noted = {"task": "segment", "names": "{0: 'cat', 1: 'dog'}"}
    model = _rows({"y": ([1, 38, 2100], "Add"), "masks": ([1, 32, 80, 80], "Add")}, noted)
    head = find_detection_head(infer(model), noted).head
    assert head == DetectionHead(layout="yolo", outputs=("y",), classes=2, source="metadata")


def test_names_in_metadata_that_are_no_names_tell_nothing() -> None:
    noted = {"task": "detect", "names": "__import__('os').abort()"}
    assert _found(_rows({"y": ([1, 38, 2000], "Add")}, noted)) == ("", ())


def test_what_ends_in_a_selection_of_boxes_is_told_by_it() -> None:
    weights: dict[str, np.ndarray] = {
        "kernel": np.ones((1, 3, 320, 320), np.float32),
        "one": np.ones(1, np.float32),
        "shape_y": np.array([1, 400], np.int64),
        "wide_y": np.array([1, 400], np.int64),
        "k": np.array([100], np.int64),
        "axis": np.array([2], np.int64),
        "six": np.array([1, 100, 6], np.int64),
    }
    nodes = [
        *_places("y", [1, 400]),
        helper.make_node("TopK", ["y", "k"], ["best", "which"]),
        helper.make_node("Unsqueeze", ["best", "axis"], ["column"]),
        helper.make_node("Concat", ["column"] * 6, ["rows"], axis=2),
    ]
    assert _found(_graph(nodes, {"rows": [1, 100, 6]}, weights)) == ("suppressed", ("rows",))
    assert _found(_graph(nodes[:-2], {"best": [1, 100]}, weights)) == ("", ())


def test_a_map_behind_two_transposed_convolutions_is_a_text_detectors() -> None:
    weights: dict[str, np.ndarray] = {
        "down": np.ones((8, 3, 4, 4), np.float32),
        "up": np.ones((8, 8, 2, 2), np.float32),
        "last": np.ones((8, 1, 2, 2), np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["image", "down"], ["a"], strides=[4, 4]),
        helper.make_node("ConvTranspose", ["a", "up"], ["b"], strides=[2, 2]),
        helper.make_node("Relu", ["b"], ["c"]),
        helper.make_node("ConvTranspose", ["c", "last"], ["d"], strides=[2, 2]),
        helper.make_node("Sigmoid", ["d"], ["map"]),
    ]
    assert _found(_graph(nodes, {"map": [1, 1, 320, 320]}, weights)) == ("text-map", ("map",))
    assert _found(_graph(nodes[:-1], {"d": [1, 1, 320, 320]}, weights)) == ("", ())


def _source(model: onnx.ModelProto, folder: Path) -> SourceModel:
    path = folder / "model.onnx"
    onnx.save(model, path)
    return load_source(path)


def _head(source: SourceModel) -> DetectionHead | None:
    part = source.description.part_of("detections")
    return None if part is None else DetectionHead.of(part)


def test_boxes_that_nothing_tells_are_asked_for_by_name(tmp_path: Path) -> None:
    source = _source(_rows({"strange.boxes": ([1, 3000, 4], "Add")}), tmp_path)
    judged = with_detection_head(source, {})
    assert _head(judged) is None
    assert "passes variants that lose objects" in judged.notes[-1]
    assert "[outputs.\"strange.boxes\"] with task = 'detections'" in judged.notes[-1]


def test_a_declared_meaning_leads_and_a_declared_layout_too(tmp_path: Path) -> None:
    source = _source(_rows({"y": ([1, 84, 2100], "Add")}), tmp_path)
    values = OutputDeclaration(task="values")
    assert _head(with_detection_head(source, {"y": values})) is None
    boxes = OutputDeclaration(task="detections", layout="yolo-objectness", order="cxcywh")
    head = _head(with_detection_head(source, {"y": boxes}))
    assert head == DetectionHead(
        layout="yolo-objectness",
        outputs=("y",),
        size=(320, 320),
        order="cxcywh",
        source="declared",
    )


def test_detections_without_a_layout_are_refused_where_the_graph_tells_none(
    tmp_path: Path,
) -> None:
    source = _source(_rows({"y": ([1, 84, 2000], "Add")}), tmp_path)
    with pytest.raises(BuildError) as refused:
        with_detection_head(source, {"y": OutputDeclaration(task="detections")})
    assert refused.value.found_in == "outputs.y"
    assert "layout = one of yolo, " in str(refused.value.remedy)


@pytest.mark.parametrize(
    ("declared", "problem"),
    [
        (
            OutputDeclaration(task="values", layout="yolo"),
            "'layout', a key of 'detections'",
        ),
        (OutputDeclaration(task="detections", layout="ssd"), "no other output is named"),
        (
            OutputDeclaration(task="detections", layout="ssd", scores="none"),
            "the model has no output 'none'",
        ),
        (OutputDeclaration(task="detections", layout="yolo", scores="y"), "scores is named"),
    ],
)
def test_declarations_that_do_not_fit_are_refused(
    declared: OutputDeclaration, problem: str, tmp_path: Path
) -> None:
    source = _source(_rows({"y": ([1, 84, 2100], "Add")}), tmp_path)
    with pytest.raises(BuildError) as refused:
        check_outputs({"y": declared}, source.outputs)
    assert problem in refused.value.problem


def test_a_declared_layout_that_the_values_contradict_is_refused(tmp_path: Path) -> None:
    source = _source(_rows({"y": ([1, 2000, 85], "Add")}), tmp_path)
    declared = {"y": OutputDeclaration(task="detections", layout="yolox")}
    samples = Samples(count=3, read=lambda _: {}, source="drawn")
    with pytest.raises(BuildError) as refused:
        describe(
            with_detection_head(source, declared),
            samples,
            lambda _: {"y": np.zeros((1, 2000, 85), np.float32)},
            lambda *_: None,
        )
    assert "the outputs y do not hold steps from a grid" in refused.value.problem


@pytest.mark.parametrize("layout", ["suppressed", "text-map"])
def test_a_declared_layout_with_scores_beyond_one_is_refused(
    tmp_path: Path, layout: LayoutName
) -> None:
    """An own layout, scores first and coordinates after them, has pixels where the scores are."""
    source = _source(_rows({"y": ([1, 64, 7], "Add")}), tmp_path)
    declared = {"y": OutputDeclaration(task="detections", layout=layout)}
    places = np.ones((1, 64, 7), np.float32)
    places[..., 3:] = 20.0
    samples = Samples(count=3, read=lambda _: {}, source="drawn")
    with pytest.raises(BuildError, match="the outputs y do not hold"):
        describe(
            with_detection_head(source, declared),
            samples,
            lambda _: {"y": places},
            lambda *_: None,
        )

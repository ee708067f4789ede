"""A model that ends in TopK or NonMaxSuppression is judged by what enters it."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from msgspec.structs import replace
from onnx import helper

from edgepack.packager.bundling.prepared_variant import PreparedVariant
from edgepack.packager.config.outputs import OutputDeclaration
from edgepack.packager.gates.accuracy import Reference
from edgepack.packager.gates.tolerances import Seen, derive_agreements, derive_tolerances
from edgepack.packager.graph.model_files import open_on_cpu
from edgepack.packager.graph.node_precision import node_precision
from edgepack.packager.profiles.reading import resolve_profile
from edgepack.packager.source.model import SourceModel, load_source
from edgepack.packager.source.watched_outputs import (
    describe_evaluation,
    describe_selection,
    postprocessing_names,
    watch_before_postprocessing,
)
from edgepack.packager.tasks.describe import with_heads
from edgepack.packager.tensors.sequence import SampleSplit
from edgepack.tasks.arrays import Outputs
from tests.unit.packager_passes.declaring import declare
from tests.unit.packager_passes.models import constant, parsed_model, samples_for, weight
from tests.unit.packager_passes.preparing import prepare

_BOXES, _SCORES = "all_boxes", "all_scores"


def _detector(*, has_decoder: bool = False) -> onnx.ModelProto:
    """64 boxes and scores, of which TopK takes eight; with a layer after it, or none."""
    last = "MatMul(taken, wd)" if has_decoder else "Mul(taken, scale)"
    return parsed_model(
        "(float[1,3,8,8] x) => (float[1,8,4] boxes, float[1,8] scores) { "
        "[conv] c0 = Conv<pads=[1,1,1,1]>(x, w0) [relu] r0 = Relu(c0) [box] cb = Conv(r0, wb) "
        "[rows] rb = Reshape(cb, box_shape) [exp] eb = Exp(rb) "
        f"[turn] {_BOXES} = Transpose<perm=[0,2,1]>(eb) [score] cs = Conv(r0, ws) "
        f"[row] rs = Reshape(cs, score_shape) [sigmoid] {_SCORES} = Sigmoid(rs) "
        f"[top] scores, places = TopK<axis=1>({_SCORES}, k) "
        "[columns] columns = Unsqueeze(places, last) [where] where = Expand(columns, wide) "
        f"[take] taken = GatherElements<axis=1>({_BOXES}, where) [last] boxes = {last} }}",
        [
            weight("w0", 8, 3, 3, 3),
            weight("wb", 4, 8, 1, 1, seed=1, scale=0.1),
            weight("ws", 1, 8, 1, 1, seed=2),
            weight("wd", 4, 4, seed=3),
            constant("box_shape", [1, 4, 64], np.int64),
            constant("score_shape", [1, 64], np.int64),
            constant("k", [8], np.int64),
            constant("last", [2], np.int64),
            constant("wide", [1, 8, 4], np.int64),
            constant("scale", 320.0),
        ],
    )


def _source(model: onnx.ModelProto, folder: Path) -> SourceModel:
    onnx.save(model, folder / "source.onnx")
    return load_source(folder / "source.onnx")


def _prepare(source: SourceModel, profile: str, folder: Path) -> PreparedVariant:
    samples = replace(samples_for(source.model, 36), description=source.description)
    split = SampleSplit(
        calibration=samples.pick(range(12)),
        search=samples.pick(range(12, 24)),
        held_out=samples.pick(range(24, 36)),
    )
    return prepare(
        source,
        resolve_profile(profile, {"gates": {"accuracy": {"any": {"keep": 0.9}}}}),
        split,
        folder / "work",
    )


def test_the_floats_that_enter_the_tail_are_found_whole(tmp_path: Path) -> None:
    watched = watch_before_postprocessing(_source(_detector(), tmp_path))
    assert watched.watched == ("eb", _SCORES), "the turn only moves values"
    assert watched.description.outputs_of("unknown") == ("eb", _SCORES)
    assert watched.description.outputs_of("selection") == ("boxes", "scores")
    assert "ends in a selection (TopK)" in watched.notes[-1]
    assert "The 6 nodes behind" in watched.notes[-1]


def _labelled_detector() -> onnx.ModelProto:
    """Return a detector that also gives the class of each taken box."""
    model = _detector()
    model.graph.node.append(helper.make_node("Mod", ["places", "kinds"], ["labels"], name="label"))
    model.graph.initializer.append(constant("kinds", [3], np.int64))
    model.graph.output.append(
        helper.make_tensor_value_info("labels", onnx.TensorProto.INT64, [1, 8])
    )
    return model


@pytest.mark.parametrize("is_declared", [False, True])
def test_boxes_that_a_selection_gives_are_judged_as_boxes(
    tmp_path: Path, is_declared: bool
) -> None:
    entry = OutputDeclaration(
        task="detections", layout="labelled", scores="scores", labels="labels"
    )
    declarations = {"boxes": entry} if is_declared else {}
    source = watch_before_postprocessing(_source(_labelled_detector(), tmp_path))
    source = with_heads(source, declarations)
    head = source.description.part_of("detections")
    assert head is not None
    assert head.outputs == ("boxes", "scores", "labels")

    confirmed = describe_selection(source, source.description)
    assert confirmed.evaluated(head.outputs) == head.outputs
    assert not confirmed.evaluated(source.watched)
    tail = postprocessing_names(source.model.graph, confirmed, source.watched)
    assert set(tail) == {"turn", "top", "columns", "where", "take", "last", "label"}

    unconfirmed = describe_selection(source, source.description.without(head.outputs))
    assert unconfirmed.outputs_of("selection") == head.outputs
    assert unconfirmed.evaluated(source.watched) == source.watched
    assert postprocessing_names(source.model.graph, unconfirmed, source.watched) == tail
    (note,) = describe_evaluation(source.watched, unconfirmed)
    assert "'eb', 'all_scores'" in note


def test_a_selection_in_the_middle_of_a_network_is_no_tail(tmp_path: Path) -> None:
    source = _source(_detector(has_decoder=True), tmp_path)
    assert watch_before_postprocessing(source) is source


def test_an_output_that_a_person_gave_a_meaning_is_judged_by_that(tmp_path: Path) -> None:
    source = _source(_detector(), tmp_path)
    declared = replace(source, description=declare(boxes="values", scores="values"))
    assert watch_before_postprocessing(declared) is declared


@pytest.mark.parametrize("profile", ["vitisai-xint8", "openvino-npu", "coreml-fp16"])
def test_a_variant_keeps_its_tail_float_and_its_outputs(tmp_path: Path, profile: str) -> None:
    source = watch_before_postprocessing(_source(_detector(), tmp_path))
    variant = _prepare(source, profile, tmp_path)
    model = onnx.load(variant.folder / variant.model_file)
    assert [value.name for value in model.graph.output] == ["boxes", "scores"]
    lowered = _lowered_names(model)
    assert {"conv", "box", "score"} <= lowered
    assert not lowered & {"top", "take", "last", "columns", "where", "turn"}
    assert not variant.tolerances, "values say nothing where rows change places"
    assert [one.part.outputs for one in variant.agreements] == [("boxes",), ("scores",)], (
        "no device has the outputs that are watched"
    )
    assert all(one.keep > 0.0 for one in variant.agreements)
    assert f"explained_variance[{_SCORES}]" in variant.accuracy.details
    assert variant.accuracy.details["overlap[boxes]"] > 0.5
    assert any(note.startswith("Of what the float model selects") for note in variant.notes)
    done = "Converted to float16, " if profile == "coreml-fp16" else "Quantized with "
    assert any(note.startswith(done) for note in variant.notes)


def _lowered_names(model: onnx.ModelProto) -> set[str]:
    """Nodes that compute in integers, or that read a constant or a tensor of 16 bits."""
    precision = node_precision(model)
    assert precision is not None
    names = {label.partition(" (")[0] for label in precision.quantized}
    half = {
        name
        for node in model.graph.node
        if node.op_type == "Cast"
        and helper.get_node_attr_value(node, "to") == onnx.TensorProto.FLOAT16
        for name in node.output
    }
    half |= {
        tensor.name
        for tensor in model.graph.initializer
        if tensor.data_type == onnx.TensorProto.FLOAT16
    }
    return names | {node.name for node in model.graph.node if half & set(node.input)}


def test_a_device_must_find_half_of_what_the_worst_sample_has_here() -> None:
    boxes = [np.random.default_rng(n).uniform(0, 300, (10, 4)) for n in range(4)]
    expected: list[Outputs] = [{"boxes": rows, "count": np.array([10])} for rows in boxes]
    got: list[Outputs] = [
        {"boxes": rows[::-1][:kept], "count": np.array([kept])}
        for rows, kept in zip(boxes, (10, 10, 10, 5), strict=True)
    ]
    known = declare(boxes="selection", count="selection")
    errors = Reference(expected, {}, known).errors(got)
    seen = Seen(errors=errors, expected=tuple(expected), got=tuple(got))
    assert derive_tolerances([seen], known) == {}
    of_boxes, of_count = derive_agreements([seen], known)
    assert of_boxes.keep == pytest.approx(0.5 * 10 / 15, abs=1e-3)
    assert of_count.keep == 0.0, "an error of one is not a broken model"


def test_the_variant_selects_what_its_own_scores_say(tmp_path: Path) -> None:
    source = watch_before_postprocessing(_source(_detector(), tmp_path))
    variant = _prepare(source, "vitisai-xint8", tmp_path)
    session = open_on_cpu(variant.folder / variant.model_file, optimize=False)
    feeds = samples_for(_detector(), 1, seed=5).read(0)
    boxes, scores = session.run(["boxes", "scores"], feeds)
    assert boxes.shape == (1, 8, 4)
    assert (np.diff(scores) <= 0).all()

"""A model with gates runs in pieces: less of it runs, and every output is the same, bit for bit."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from msgspec.structs import replace
from onnx import TensorProto, helper

from edgepack.packager.graph.held_weights import WeightsFile
from edgepack.packager.graph.model_files import open_on_cpu, save_model
from edgepack.packager.graph.pieces import cut
from edgepack.packager.graph.queries import index_graph
from edgepack.packager.graph.shape_inference import add_shapes
from edgepack.packager.profiles.pass_settings import Quantize
from edgepack.packager.progress import silent
from edgepack.packager.quantization.static import switchable_model as switchable_model
from edgepack.packager.quantization.static.calibrated_model import CalibratedModel
from edgepack.packager.quantization.static.switchable_model import (
    SWITCHES,
    SwitchableModel,
    SwitchWriter,
)
from edgepack.packager.tensors.sequence import Samples
from tests.unit.packager_passes.candidate_specs import spec
from tests.unit.packager_passes.models import make_model, samples_for, weight

_SETTINGS = Quantize(ops="all", activations="uint8", weights="int8")


def _branched() -> onnx.ModelProto:
    """A trunk of four products, and two heads of two; no head knows of the other."""
    nodes, weights, value = [], [], "x"
    for number in range(4):
        nodes.append(_product(value, f"w{number}", f"t{number}"))
        value = f"t{number}"
    for head in ("a", "b"):
        nodes.append(_product(value, f"w{head}", f"{head}/hidden"))
        nodes.append(helper.make_node("Tanh", [f"{head}/hidden"], [head], name=f"tanh/{head}"))
    names = [*(f"w{number}" for number in range(4)), "wa", "wb"]
    weights = [weight(name, 8, 8, seed=seed) for seed, name in enumerate(names)]
    model = make_model(nodes, {"x": [1, 8]}, {"a": [1, 8], "b": [1, 8]}, weights)
    add_shapes(model)
    return model


def _product(value: str, weights: str, output: str) -> onnx.NodeProto:
    return helper.make_node("MatMul", [value, weights], [output], name=output)


def _switchable(tmp_path: Path, samples: Samples) -> tuple[SwitchableModel, CalibratedModel]:
    calibrated = CalibratedModel(
        _branched(), _SETTINGS, samples, work_dir=tmp_path, progress=silent
    )
    return calibrated.make_switchable(spec("minmax"), tmp_path / "switchable.onnx"), calibrated


def _in_one(calibrated: CalibratedModel, path: Path) -> Any:
    plan, scales = calibrated.plan(spec("minmax"), calibrated.index)
    with WeightsFile(path.with_suffix(".weights")) as rounded:
        writer = SwitchWriter(calibrated.model, calibrated.index, plan, scales, rounded)
        switchable = writer.write()
    save_model(switchable.model, path)
    return open_on_cpu(path, optimize=False)


def test_every_subset_of_nodes_gives_what_the_whole_model_gives(tmp_path: Path) -> None:
    samples = samples_for(_branched(), 4)
    switchable, calibrated = _switchable(tmp_path, samples)
    whole = _in_one(calibrated, tmp_path / "whole.onnx")
    count = len(switchable.names)
    assert len(switchable._pieces) > 1, "or there is nothing to be seen here"
    subsets = [(), *((number,) for number in range(count)), (0, count - 1), tuple(range(count))]
    for feeds in samples:
        for subset in subsets:
            gates = np.isin(np.arange(count), subset)
            got = switchable.run(feeds, gates)
            expected = whole.run(["a", "b"], {**feeds, SWITCHES: gates})
            np.testing.assert_array_equal(got["a"], expected[0])
            np.testing.assert_array_equal(got["b"], expected[1])


def test_pieces_that_compute_what_the_float_model_does_are_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(switchable_model, "_FEWEST_NODES", 1)
    samples = samples_for(_branched(), 6)
    switchable, _ = _switchable(tmp_path, samples)
    ran: list[int] = []
    watched = [
        replace(piece, session=_Watched(piece.session, ran, number))
        for number, piece in enumerate(switchable._pieces)
    ]
    monkeypatch.setattr(switchable, "_pieces", watched)
    assert len(switchable._pieces) == 8
    none = np.zeros(len(switchable.names), dtype=np.bool_)

    def runs(feeds: dict[str, Any], *names: str) -> list[int]:
        ran.clear()
        switchable.run(feeds, np.isin(switchable.names, names))
        return list(ran)

    feeds, other = samples.read(0), samples.read(1)
    assert runs(feeds, "t3") == list(range(8)), "nothing is known of this sample yet"
    switchable.run(feeds, none)
    assert runs(feeds) == []
    assert runs(feeds, "t3") == [3, 4, 5, 6, 7]
    assert runs(feeds, "a/hidden") == [4, 5], "the other head reads nothing of this one"
    assert runs(other, "a/hidden") == list(range(8)), "another sample is another matter"
    for number in (1, 2, 3, 0, 4):
        switchable.run(samples.read(number), none)
    assert runs(feeds) == [], "of the last four it was the last but one"
    assert runs(other) == list(range(8)), "it was the fifth before"
    monkeypatch.setattr(switchable_model, "_MOST_KEPT_BYTES", 1)
    switchable.run(other, none)
    assert runs(other, "b") == list(range(8)), "what does not fit is not kept"


class _Watched:
    def __init__(self, session: Any, ran: list[int], number: int) -> None:
        self._session = session
        self._ran = ran
        self._number = number

    def get_inputs(self) -> Any:
        return self._session.get_inputs()

    def run(self, *arguments: Any) -> Any:
        self._ran.append(self._number)
        return self._session.run(*arguments)


def _run_pieces(model: onnx.ModelProto, starts: Sequence[int], folder: Path) -> tuple[int, Any]:
    pieces = cut(model, starts, index_graph(model.graph).types)
    values = {"x": np.arange(8, dtype=np.float32).reshape(1, 8) / 8}
    for number, piece in enumerate(pieces):
        path = folder / f"{number}.onnx"
        save_model(piece.model, path)
        used = {name: values[name] for name in piece.inputs}
        made = open_on_cpu(path, optimize=False).run(piece.outputs, used)
        values |= dict(zip(piece.outputs, made, strict=True))
    return len(pieces), values["b"]


def test_a_cut_model_exchanges_what_later_pieces_and_bodies_read(tmp_path: Path) -> None:
    model = _branched()
    body = helper.make_graph(
        [helper.make_node("Add", ["t0", "t3"], ["sum"])],
        "body",
        [],
        [helper.make_tensor_value_info("sum", TensorProto.FLOAT, None)],
    )
    condition = onnx.numpy_helper.from_array(np.array(True), "yes")
    model.graph.initializer.append(condition)
    chosen = helper.make_node("If", ["yes"], ["b"], then_branch=body, else_branch=body)
    model.graph.node[-1].output[0] = "unused"
    model.graph.node.append(chosen)
    count, whole = _run_pieces(model, (0,), tmp_path)
    assert count == 1
    count, got = _run_pieces(model, (0, 2, 5), tmp_path)
    assert count == 3
    np.testing.assert_array_equal(got, whole)


def test_a_model_with_a_tensor_of_unknown_type_stays_whole(tmp_path: Path) -> None:
    model = _branched()
    del model.graph.value_info[:]
    count, got = _run_pieces(model, (0, 2, 5), tmp_path)
    assert count == 1
    assert got.shape == (1, 8)


def test_a_body_s_own_tensor_named_like_a_later_one_is_not_asked_of_a_later_piece() -> None:
    model = _branched()
    body = helper.make_graph(
        [
            helper.make_node("Neg", ["t0"], ["t3"]),
            helper.make_node("Neg", ["t3"], ["back"]),
        ],
        "body",
        [],
        [helper.make_tensor_value_info("back", TensorProto.FLOAT, None)],
    )
    nodes = list(model.graph.node)
    nodes[1].input[0] = "chosen"
    chosen = helper.make_node("If", ["yes"], ["chosen"], then_branch=body, else_branch=body)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(True), "yes"))
    del model.graph.node[:]
    model.graph.node.extend([nodes[0], chosen, *nodes[1:]])
    first, second = cut(model, (0, 3), index_graph(model.graph).types)
    assert first.inputs == ("x",)
    assert second.inputs == ("t1",)

"""Weights that are rounded by GPTQ: nearer products, no worse ones, and the same bytes."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from msgspec.structs import replace
from onnx import helper

from edgepack.packager.graph.queries import index_graph
from edgepack.packager.profiles.pass_settings import Quantize
from edgepack.packager.progress import silent
from edgepack.packager.quantization.contract import CandidateSpec
from edgepack.packager.quantization.gptq import round_by_gptq
from edgepack.packager.quantization.static.candidate_maker import StaticCandidateMaker
from edgepack.packager.quantization.static.gptq_rounding import (
    IntegerGrid,
    Product,
    find_product,
    measure_halves,
    parts_that_fit,
)
from edgepack.packager.quantization.static.plan import make_plan
from edgepack.packager.runtime.model_run import ModelRunner, largest_difference
from edgepack.packager.tensors.sequence import Samples
from tests.unit.packager_passes.candidate_specs import spec
from tests.unit.packager_passes.models import make_model, parsed_model, weight

_NEAREST = spec("minmax")
_BY_GPTQ = spec("minmax", has_gptq_weights=True)


def _settings(**changes: object) -> Quantize:
    plain = {"ops": "compute", "activations": "uint16", "weights": "int8"}
    return Quantize(**(plain | {"weight_rounding": "gptq"} | changes))  # type: ignore[arg-type]


def _alike(model: onnx.ModelProto, count: int, *, seed: int = 0, size: float = 1.0) -> Samples:
    """Samples whose channels are nearly multiples of one another, as those of real models are."""
    (value,) = model.graph.input
    shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]

    def read(index: int) -> dict[str, npt.NDArray[np.generic]]:
        rng = np.random.default_rng([seed, index])
        shared = rng.normal(0, 1, (shape[0], 1, *shape[2:]))
        values = shared + rng.normal(0, 0.1, shape)
        return {value.name: (size * values).astype(np.float32)}

    return Samples(count=count, read=read, source="made by the test")


def _convolution(
    attributes: dict[str, Any], kernel: tuple[int, ...], data: tuple[int, ...]
) -> onnx.ModelProto:
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], name="conv", **attributes)]
    places = [None] * (len(data) - 2)
    model = make_model(nodes, {"x": data}, {"y": []}, [weight("w", *kernel)])
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    for size in (data[0], kernel[0], *places):
        model.graph.output[0].type.tensor_type.shape.dim.add(dim_value=size or 0)
    return model


def _network() -> onnx.ModelProto:
    return parsed_model(
        "(float[1,8,8,8] x) => (float[1,5] y) { [whole] a = Conv<pads=[1,1,1,1]>(x, w1) "
        "[relu] r = Relu(a) [depthwise] b = Conv<group=8>(r, w2) [pool] p = GlobalAveragePool(b) "
        "[flatten] f = Flatten(p) [classify] y = Gemm<transB=1>(f, w3) }",
        [weight("w1", 8, 8, 3, 3), weight("w2", 8, 1, 3, 3), weight("w3", 5, 8)],
    )


def _product(model: onnx.ModelProto) -> Product:
    index = index_graph(model.graph)
    product = find_product(index, make_plan(index, _settings(), ()).nodes[0])
    assert product is not None
    return product


def _noise(
    quantizer: StaticCandidateMaker, model: onnx.ModelProto, candidate: CandidateSpec, folder: Path
) -> float:
    unseen = _alike(model, 8, seed=1, size=0.5)  # within the ranges, so that only weights err
    built = quantizer.build(candidate).model
    return largest_difference(
        ModelRunner(model, folder / "float.onnx").run_all(unseen),
        ModelRunner(built, folder / "lowered.onnx", optimize=False).run_all(unseen),
    )


def _quantizer(model: onnx.ModelProto, samples: Samples, folder: Path) -> StaticCandidateMaker:
    return StaticCandidateMaker(model, _settings(), samples, work_dir=folder, progress=silent)


def test_ranges_are_tried_with_nearest_integers_first(tmp_path: Path) -> None:
    model = _network()
    assert _quantizer(model, _alike(model, 4), tmp_path).methods == (
        _NEAREST.method,
        _BY_GPTQ.method,
    )


def test_outputs_of_samples_that_were_not_seen_come_nearer(tmp_path: Path) -> None:
    model = _network()
    quantizer = _quantizer(model, _alike(model, 16), tmp_path)
    nearest = _noise(quantizer, model, _NEAREST, tmp_path)
    assert _noise(quantizer, model, _BY_GPTQ, tmp_path) < 0.7 * nearest
    (note,) = quantizer.build(_BY_GPTQ).notes
    assert note.startswith("Weights rounded by GPTQ: those of 3 of 3 layers; the squared ")


def test_nodes_are_ranked_by_the_weights_that_they_would_have(tmp_path: Path) -> None:
    model = _network()
    samples = _alike(model, 16)
    quantizer = _quantizer(model, samples, tmp_path)
    nearest = {cost.name: cost.noise for cost in quantizer.rank(_NEAREST, samples, silent)}
    ranked = {cost.name: cost.noise for cost in quantizer.rank(_BY_GPTQ, samples, silent)}
    assert ranked["whole"] < 0.7 * nearest["whole"]


def test_what_is_float_changes_no_other_weight_and_two_builds_are_equal(tmp_path: Path) -> None:
    model = _network()
    first = _quantizer(model, _alike(model, 4), tmp_path / "a")
    second = _quantizer(model, _alike(model, 4), tmp_path / "b")
    second.build(replace(_BY_GPTQ, float_nodes=("whole",)))
    wanted = first.build(_BY_GPTQ).model
    assert second.build(_BY_GPTQ).model.SerializeToString() == wanted.SerializeToString()


def test_a_layer_that_held_back_samples_speak_against_keeps_its_nearest_integers(
    tmp_path: Path,
) -> None:
    # Samples take turns: what makes up for errors on every other one does harm on the rest.
    model = parsed_model(
        "(float[1,64] x) => (float[1,4] y) { [product] y = MatMul(x, w) }", [weight("w", 64, 4)]
    )

    def read(index: int) -> dict[str, npt.NDArray[np.generic]]:
        values = np.random.default_rng([index]).normal(0, 1, (1, 32)).astype(np.float32)
        sign = 1.0 if index % 2 else -1.0
        return {"x": np.concatenate([values, sign * values], axis=1).astype(np.float32)}

    samples = Samples(count=16, read=read, source="made by the test")
    quantizer = _quantizer(model, samples, tmp_path)
    plain, tried = quantizer.build(_NEAREST), quantizer.build(_BY_GPTQ)
    assert tried.model.SerializeToString() == plain.model.SerializeToString()
    assert tried.notes == (
        "Weights rounded by GPTQ: no layer's outputs come nearer on held-back samples.",
    )


@pytest.mark.parametrize(
    ("attributes", "kernel", "data"),
    [
        ({"pads": [1, 0, 2, 1], "strides": [2, 1]}, (4, 3, 3, 2), (2, 3, 7, 6)),
        ({"dilations": [2, 2], "group": 2}, (4, 2, 2, 2), (1, 4, 6, 6)),
        ({"auto_pad": "SAME_UPPER", "strides": [2, 2]}, (4, 3, 3, 3), (1, 3, 6, 7)),
        ({"auto_pad": "SAME_LOWER"}, (4, 3, 2, 4), (1, 3, 5, 5)),
        ({"auto_pad": "VALID", "group": 4}, (4, 1, 3), (1, 4, 9)),
    ],
)
def test_the_windows_of_a_convolution_are_what_its_weights_are_multiplied_with(
    attributes: dict[str, Any], kernel: tuple[int, ...], data: tuple[int, ...], tmp_path: Path
) -> None:
    model = _convolution(attributes, kernel, data)
    feeds = _alike(model, 1).read(0)
    product = _product(model)
    (values,) = ModelRunner(model, tmp_path / "conv.onnx").run(feeds).values()
    matrix = product.to_matrix(onnx.numpy_helper.to_array(model.graph.initializer[0]))
    rows = product.rows(feeds["x"].astype(np.float32))
    expected = np.moveaxis(values, 1, -1).reshape(-1, kernel[0])
    weights = np.swapaxes(matrix, 1, 2).astype(np.float32)
    got = np.moveaxis(rows @ weights, 0, 1).reshape(-1, kernel[0])
    assert got.shape == expected.shape
    assert np.abs(got.astype(np.float64) - expected.astype(np.float64)).max() < 1e-4
    assert np.array_equal(
        product.from_matrix(matrix), onnx.numpy_helper.to_array(model.graph.initializer[0])
    )


def test_every_other_sample_counts_for_one_half(tmp_path: Path) -> None:
    model = parsed_model(
        "(float[1,2] x) => (float[1,1] y) { [product] y = MatMul(x, w) }", [weight("w", 2, 1)]
    )
    samples = Samples(
        count=3,
        read=lambda index: {"x": np.array([[index + 1, 1]], dtype=np.float32)},
        source="made by the test",
    )
    ((first, second),) = measure_halves(
        model, [_product(model)], samples, tmp_path / "m.onnx", silent
    )
    assert first.tolist() == [[[1 + 9, 1 + 3], [1 + 3, 2]]]
    assert second.tolist() == [[[4, 2], [2, 1]]]


def test_products_are_divided_so_that_each_part_fits() -> None:
    model = _network()
    index = index_graph(model.graph)
    nodes = make_plan(index, _settings(), ()).nodes
    products = [product for node in nodes if (product := find_product(index, node))]
    assert [p.node.name for p in products] == ["whole", "depthwise", "classify"]
    assert parts_that_fit(index, products) == [products]
    assert parts_that_fit(index, products, 20_000) == [products[:1], products[1:]]


def test_a_weight_that_two_products_share_is_left_to_its_nearest_integers() -> None:
    model = parsed_model(
        "(float[1,4] x) => (float[1,4] y) { [first] a = MatMul(x, w) [second] y = MatMul(a, w) }",
        [weight("w", 4, 4)],
    )
    index = index_graph(model.graph)
    plans = make_plan(index, _settings(), ()).nodes
    assert [find_product(index, plan) for plan in plans] == [None, None]


@pytest.mark.filterwarnings("error")
def test_weights_whose_inputs_have_no_squares_in_32_bits_keep_their_nearest_integers(
    tmp_path: Path,
) -> None:
    model = _network()
    quantizer = _quantizer(model, _alike(model, 4, size=1e25), tmp_path)
    (note,) = quantizer.build(_BY_GPTQ).notes
    assert note == "Weights rounded by GPTQ: no layer's outputs come nearer on held-back samples."
    nearest = quantizer.build(_NEAREST).model
    assert quantizer.build(_BY_GPTQ).model.SerializeToString() == nearest.SerializeToString()


def test_columns_without_signal_are_rounded_to_the_nearest() -> None:
    values = np.array([[[0.4, -1.6, 2.2]]], dtype=np.float32)
    grid = IntegerGrid(
        step=np.ones((1, 1), dtype=np.float32),
        zero_point=np.zeros((1, 1), dtype=np.float32),
        lowest=-2,
        highest=2,
    )
    rounded = round_by_gptq(values, grid, np.zeros((1, 3, 3), np.float32))
    assert rounded.tolist() == [[[0.0, -2.0, 2.0]]]

"""Small classifiers, trained here on known preprocessing, and warnings about others."""

from itertools import product
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from edgepack.packager.config.inputs import ImageInput, InputDeclaration, RawInput
from edgepack.packager.samples.preprocessing import describe_inputs, find_doubts
from edgepack.packager.source.model import load_source
from edgepack.packager.tensors.sequence import Samples
from edgepack.tasks.arrays import Floats

_SIDE, _FILTERS, _KERNEL = 20, 8, 3
_PREPARED = {
    "0 … 1": lambda pixels: pixels,
    "-1 … 1": lambda pixels: 2.0 * pixels - 1.0,
    "0 … 255": lambda pixels: 255.0 * pixels,
}


def _pictures(count: int, paper: str, rng: np.random.Generator) -> tuple[Floats, np.ndarray]:
    """Return bars and squares on coloured or on black paper, pixels 0 … 1, and their kinds."""
    kinds = rng.integers(0, 3, count)
    dark = 0.0 if paper == "black" else 1.0
    pixels = dark * np.ones((count, 3, _SIDE, _SIDE)) * rng.uniform(0.3, 1.0, (count, 3, 1, 1))
    for number, kind in enumerate(kinds):
        top, left = rng.integers(1, 10, 2)
        height, width = ((8, 8), (2, 9), (9, 2))[kind]
        colour = rng.uniform(0.6, 1.0) if paper == "black" else rng.uniform(0.0, 0.4)
        pixels[number, :, top : top + height, left : left + width] = colour
    return np.clip(pixels + rng.normal(0.0, 0.02, pixels.shape), 0.0, 1.0), kinds


def _train(inputs: Floats, kinds: np.ndarray, *, has_norm: bool, seed: int) -> onnx.ModelProto:
    """Train a convolution, a mean over the picture and a linear layer, by gradient descent."""
    rng = np.random.default_rng(seed)
    views = np.lib.stride_tricks.sliding_window_view(inputs, (_KERNEL, _KERNEL), (2, 3))
    rows = views[:, :, ::2, ::2].transpose(0, 2, 3, 1, 4, 5).reshape(len(inputs), -1, 27)
    conv = rng.normal(0.0, np.sqrt(2 / 27), (27, _FILTERS))
    linear = rng.normal(0.0, 0.3, (_FILTERS, 3))
    mean, variance = np.zeros(_FILTERS), np.ones(_FILTERS)
    for _ in range(40):
        seen = rows @ conv
        if has_norm:
            mean, variance = seen.mean((0, 1)), seen.var((0, 1)) + 1e-5
        hidden = np.maximum((seen - mean) / np.sqrt(variance), 0.0)
        scores = hidden.mean(1) @ linear
        shares = np.exp(scores - scores.max(1, keepdims=True))
        shares /= shares.sum(1, keepdims=True)
        shares[np.arange(len(kinds)), kinds] -= 1.0
        back = (shares @ linear.T)[:, None] / rows.shape[1] * (hidden > 0) / np.sqrt(variance)
        linear -= 0.3 * hidden.mean(1).T @ shares / len(kinds)
        step = np.einsum("npi,npo->io", rows, back) / len(kinds)
        conv -= 0.05 * step / max(1.0, float(np.linalg.norm(step)))
    weights = {
        "conv": conv.T.reshape(_FILTERS, 3, _KERNEL, _KERNEL),
        "linear": linear,
        "scale": np.ones(_FILTERS),
        "shift": np.zeros(_FILTERS),
        "mean": mean,
        "variance": variance,
    }
    nodes = [helper.make_node("Conv", ["x", "conv"], ["seen"], strides=[2, 2], name="conv")]
    if has_norm:
        statistics = ["scale", "shift", "mean", "variance"]
        nodes.append(helper.make_node("BatchNormalization", ["seen", *statistics], ["normed"]))
    last = "normed" if has_norm else "seen"
    nodes += [
        helper.make_node("Relu", [last], ["hidden"]),
        helper.make_node("GlobalAveragePool", ["hidden"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
        helper.make_node("MatMul", ["flat", "linear"], ["scores"]),
    ]
    kept = {name for node in nodes for name in node.input}
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 3, _SIDE, _SIDE])],
        [helper.make_tensor_value_info("scores", onnx.TensorProto.FLOAT, [1, 3])],
        [
            numpy_helper.from_array(value.astype(np.float32), name)
            for name, value in weights.items()
            if name in kept
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(
    ("paper", "has_norm", "trained"),
    list(product(["coloured", "black"], [True, False], ["0 … 1", "-1 … 1"])),
)
def test_a_small_classifier_is_doubted_for_what_it_was_not_trained_on(
    paper: str, has_norm: bool, trained: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rng = np.random.default_rng(1)
    pixels, kinds = _pictures(120, paper, rng)
    model = _train(_PREPARED[trained](pixels), kinds, has_norm=has_norm, seed=2)
    path = tmp_path_factory.mktemp("small") / "model.onnx"
    onnx.save(model, path)
    source = load_source(path)
    others, _ = _pictures(16, paper, rng)

    def doubts(prepared: str, declared: InputDeclaration | None = None) -> tuple[str, ...]:
        values = _PREPARED[prepared](others).astype(np.float32)
        samples = Samples(
            count=len(values), read=lambda index: {"x": values[index : index + 1]}, source="small"
        )
        declarations = {"x": declared} if declared else {}
        described = describe_inputs(samples, source.inputs, declarations)
        return find_doubts(source, samples, described, declarations)

    (far,) = doubts("0 … 255")
    assert "first layer" in far
    assert not any("first layer" in doubt for doubt in doubts(trained))
    if trained == "-1 … 1":
        assert doubts(trained) == ()
        return
    # Which mean was taken off in training is not in the weights: a person says so, once.
    (unsure,) = doubts(trained)
    remedy = "prepared_as_trained = true in [inputs.x] of edgepack.toml"
    assert remedy in unsure
    assert remedy in far
    assert doubts(trained, RawInput(prepared_as_trained=True)) == ()


_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@pytest.mark.parametrize("is_declared", [True, False])
@pytest.mark.parametrize("turned", [1, -1], ids=["RGB", "BGR"])
def test_swapped_mean_and_std_are_doubted(is_declared: bool, turned: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    pixels, kinds = _pictures(60, "black", rng)
    model = _train(2.0 * pixels - 1.0, kinds, has_norm=False, seed=2)
    onnx.save(model, tmp_path / "model.onnx")
    source = load_source(tmp_path / "model.onnx")

    def doubts(mean: tuple[float, ...], std: tuple[float, ...]) -> tuple[str, ...]:
        mean, std = mean[::turned], std[::turned]
        columns = (np.reshape(values, (1, 3, 1, 1)) for values in (mean, std))
        values = ((pixels[:16] - next(columns)) / next(columns)).astype(np.float32)
        samples = Samples(
            count=16, read=lambda index: {"x": values[index : index + 1]}, source="swapped"
        )
        declarations = {"x": ImageInput(mean=mean, std=std)} if is_declared else {}
        described = describe_inputs(samples, source.inputs, declarations)
        return find_doubts(source, samples, described, declarations)

    (doubt,) = doubts(_STD, _MEAN)
    assert "swapped" in doubt
    assert "prepared_as_trained = true in [inputs.x]" in doubt
    assert doubts(_MEAN, _STD) == ()
    assert doubts((0.5,) * 3, (0.5,) * 3) == ()

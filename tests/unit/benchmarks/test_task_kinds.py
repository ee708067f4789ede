"""Networks that numpy trains: gradients, ONNX export, and models that are good at their tasks."""

from collections.abc import Callable

import numpy as np
import pytest

from benchmarks.task_kinds import measures, tape
from benchmarks.task_kinds.tape import Array, Parameters, Tensor
from tests.simulators.task_models import float_accuracy, open_run, task_model

_RNG = np.random.default_rng(0)
_PICTURES = _RNG.normal(size=(1, 2, 8, 8)).astype(np.float32)
_SIGNALS = _RNG.normal(size=(1, 2, 9)).astype(np.float32)
_ROWS = _RNG.normal(size=(1, 5, 4)).astype(np.float32)


def _pictures(parameters: Parameters) -> Tensor:
    x = tape.inputs(_PICTURES, "x")
    hidden = tape.max_pool(tape.tanh(parameters.conv(x, "first", 3)))
    hidden = tape.upsample(tape.tanh(parameters.conv(hidden, "second", 4, stride=2)))
    return parameters.conv(tape.concat([hidden, hidden * 2.0], 1), "third", 2, dilation=2)


def _signals(parameters: Parameters) -> Tensor:
    x = tape.inputs(_SIGNALS, "x")
    hidden = tape.sigmoid(parameters.conv(x, "first", 3, kernel=5, stride=2))
    return tape.mean(tape.exp(parameters.conv(hidden, "second", 2)), 2)


def _attention(parameters: Parameters) -> Tensor:
    x = tape.inputs(_ROWS, "x")
    queries = parameters.embed(tape.positions(x), "table", 6, 4)
    keys = tape.transpose(parameters.layer_norm(parameters.dense(x, "keys", 4), "norm"), 0, 2, 1)
    mixed = tape.softmax(queries @ keys) @ x / (tape.absolute(parameters.dense(x, "by", 4)) + 1.0)
    return parameters.dense(tape.reshape(tape.relu(mixed) - mixed, 20), "last", 3)


_NETWORKS = [_pictures, _signals, _attention]


@pytest.mark.parametrize("network", _NETWORKS)
def test_gradients_are_the_slopes_of_the_outputs(network: Callable[[Parameters], Tensor]) -> None:
    parameters = Parameters(0)
    upstream = np.random.default_rng(1).normal(size=network(parameters).value.shape)
    for tensor in parameters.tensors.values():
        tensor.value = tensor.value.astype(np.float64)

    def weighted() -> float:
        return float((network(parameters).value * upstream).sum())

    tape.backward({network(parameters): upstream})
    for name, tensor in parameters.tensors.items():
        place = tuple(size // 2 for size in tensor.value.shape)
        assert tensor.grad is not None, name
        slope = tensor.grad[place]
        tensor.value[place] += 1e-5
        above = weighted()
        tensor.value[place] -= 2e-5
        below = weighted()
        tensor.value[place] += 1e-5
        np.testing.assert_allclose(slope, (above - below) / 2e-5, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("network", _NETWORKS)
def test_exported_graph_computes_what_numpy_computes(
    network: Callable[[Parameters], Tensor],
) -> None:
    output = tape.named(network(Parameters(0)), "y")
    (x,) = [tensor for tensor in _inputs(output) if tensor.name == "x"]
    got = open_run(tape.export([output]))({"x": x.value})
    np.testing.assert_allclose(got["y"], output.value, rtol=1e-4, atol=1e-5)


def _inputs(tensor: Tensor) -> set[Tensor]:
    found = {tensor} if tensor.is_input else set()
    return found.union(*map(_inputs, tensor.parents))


@pytest.mark.parametrize(
    ("name", "least"),
    [("sensor_quantities", 0.9), ("forecast", 0.8), ("encoder_decoder", 0.95)],
)
def test_trained_model_is_good_at_its_task(name: str, least: float) -> None:
    assert float_accuracy(name) > least
    samples = task_model(name).calibration
    assert len(samples) >= 60
    open_run(task_model(name).model)(dict(samples[0]))


@pytest.mark.parametrize(
    ("got", "value"),
    [
        (measures.auc(np.array([True, True, False]), np.array([0.9, 0.4, 0.4])), 0.75),
        (measures.r2(np.array([[0.0], [2.0]]), np.array([[0.0], [1.0]])), 0.5),
        (measures.edits("kitten", "sitting"), 3),
        (measures.mean_iou(np.array([0, 0, 1]), np.array([0, 1, 1]), 3), 0.5),
        (measures.spearman(np.array([1, 2, 3]), np.array([5, 6, 60])), 1.0),
        (measures.f1(np.array([True, False, True]), np.array([True, True, False])), 0.5),
    ],
)
def test_measures_of_tasks(got: float | Array, value: float) -> None:
    assert got == pytest.approx(value)

"""Models that are computed in a second, for constants that no other model reads."""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.task_kinds.kind import Kind, TaskModel, declare, rows, run_rows
from benchmarks.tasks.task import Array, Run

_WEEKS = 4
_DAYS = 7


def weekly_sales() -> TaskModel:
    """Return the sales of the next seven days of shops of unlike size, after four weeks."""

    def draw(seed: int, count: int) -> tuple[Array, Array]:
        rng = np.random.default_rng(seed)
        size = np.exp(rng.uniform(np.log(20.0), np.log(400.0), (count, 1)))
        week = rng.uniform(0.5, 1.5, (count, _DAYS))
        noise = rng.normal(1.0, 0.08, (count, (_WEEKS + 1) * _DAYS))
        sales = size * np.tile(week, _WEEKS + 1) * noise
        days = sales.astype(np.float32)
        return days[:, : _WEEKS * _DAYS], days[:, _WEEKS * _DAYS :]

    past, future = draw(21, 4000)
    scale = 1.0 / past.mean(axis=1, keepdims=True)
    weights = np.linalg.lstsq(past * scale, future * scale, rcond=None)[0].astype(np.float32)
    fresh, truth = draw(23, 800)
    naive = np.abs(truth - fresh[:, -1:]).mean(axis=1)

    def measure(run: Run) -> float:
        got = run_rows(run, "past", fresh)["week"]
        return float(1.0 - (np.abs(truth - got).mean(axis=1) / naive).mean())

    graph = helper.make_graph(
        [helper.make_node("MatMul", ["past", "weights"], ["week"])],
        "sales",
        [helper.make_tensor_value_info("past", TensorProto.FLOAT, [1, _WEEKS * _DAYS])],
        [helper.make_tensor_value_info("week", TensorProto.FLOAT, [1, _DAYS])],
        [numpy_helper.from_array(weights, "weights")],
    )
    opset = [helper.make_opsetid("", 17)]
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=opset, ir_version=8)
    return TaskModel(
        model=model,
        calibration=rows("past", draw(22, 150)[0]),
        metric="skill against the last day",
        measure=measure,
        outputs=declare("week", "values"),
    )


_ITEMS, _WIDTH, _BEST = 300, 24, 5


def retrieval() -> TaskModel:
    """Return the five items that are most like a noisy view of one."""
    items = np.random.default_rng(31).normal(0, 1, (_ITEMS, _WIDTH)).astype(np.float32)
    mixed = np.random.default_rng(32).normal(0, 0.3, (_WIDTH, _WIDTH)).astype(np.float32)

    def draw(seed: int, count: int) -> tuple[Array, Array]:
        rng = np.random.default_rng(seed)
        wanted = rng.integers(0, _ITEMS, count)
        views = items[wanted] + rng.normal(0, 1.1, (count, _WIDTH))
        return (views @ np.linalg.inv(mixed)).astype(np.float32), wanted

    fresh, truth = draw(33, 1500)

    def measure(run: Run) -> float:
        found = run_rows(run, "view", fresh)["items"]
        return float((found == truth[:, None]).any(axis=1).mean())

    nodes = [
        helper.make_node("MatMul", ["view", "mixed"], ["straight"]),
        helper.make_node("MatMul", ["straight", "stored"], ["alike"]),
        helper.make_node("TopK", ["alike", "best"], ["scores", "items"]),
    ]
    outputs = {"scores": TensorProto.FLOAT, "items": TensorProto.INT64}
    weights: dict[str, Array] = {
        "mixed": mixed,
        "stored": items.T.copy(),
        "best": np.array([_BEST], np.int64),
    }
    return TaskModel(
        model=_model(nodes, "view", (_WIDTH,), outputs, (1, _BEST), weights),
        calibration=rows("view", draw(34, 150)[0]),
        metric="wanted items among five",
        measure=measure,
        outputs="",
    )


_PLACES, _SPAN, _FOUND = 60, 9, 4


def proposals() -> TaskModel:
    """Return start, end and height of the four clearest bumps of a signal."""
    length = _PLACES + _SPAN - 1
    bump = np.hanning(_SPAN + 2)[1:-1]

    def draw(seed: int, count: int) -> tuple[Array, Array]:
        rng = np.random.default_rng(seed)
        signals = rng.normal(0, 0.15, (count, length))
        starts = np.stack([rng.permutation(_PLACES // 12)[:3] * 12 for _ in range(count)])
        starts = starts + rng.integers(0, 3, starts.shape)
        for row, places in enumerate(starts):
            for place in places:
                signals[row, place : place + _SPAN] += bump * rng.uniform(0.8, 1.6)
        return signals.astype(np.float32)[:, None], starts

    fresh, truth = draw(41, 400)

    def measure(run: Run) -> float:
        found = run_rows(run, "signal", fresh)["bumps"][..., 0]
        near = np.abs(found[:, None, :] - truth[:, :, None]) <= 2
        return float(near.any(axis=2).mean())

    kernels = np.stack([(bump - bump.mean()) / (bump**2).sum(), bump / (bump**2).sum()])
    places = np.arange(_PLACES, dtype=np.float32)
    frame = np.stack([places, places + _SPAN], axis=-1)[None]
    nodes = [
        helper.make_node("Conv", ["signal", "kernels"], ["maps"]),
        helper.make_node("Transpose", ["maps"], ["turned"], perm=[0, 2, 1]),
        helper.make_node("Split", ["turned"], ["clearness", "heights"], axis=2),
        helper.make_node("Concat", ["frame", "heights"], ["all"], axis=2),
        helper.make_node("Squeeze", ["clearness", "last"], ["flat"]),
        helper.make_node("TopK", ["flat", "best"], ["scores", "order"]),
        helper.make_node("Squeeze", ["order", "first"], ["chosen"]),
        helper.make_node("Gather", ["all", "chosen"], ["bumps"], axis=1),
    ]
    weights: dict[str, Array] = {
        "kernels": kernels[:, None].astype(np.float32),
        "frame": frame,
        "last": np.array([2], np.int64),
        "first": np.array([0], np.int64),
        "best": np.array([_FOUND], np.int64),
    }
    outputs = {"bumps": TensorProto.FLOAT}
    return TaskModel(
        model=_model(nodes, "signal", (1, length), outputs, (1, _FOUND, 3), weights),
        calibration=rows("signal", draw(42, 150)[0]),
        metric="bumps found",
        measure=measure,
        outputs="",
    )


def _model(
    nodes: Sequence[onnx.NodeProto],
    fed: str,
    given: tuple[int, ...],
    outputs: Mapping[str, int],
    shape: tuple[int, ...],
    weights: Mapping[str, Array],
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "selected",
        [helper.make_tensor_value_info(fed, TensorProto.FLOAT, (1, *given))],
        [helper.make_tensor_value_info(name, kind, shape) for name, kind in outputs.items()],
        [numpy_helper.from_array(values, name) for name, values in weights.items()],
    )
    opset = [helper.make_opsetid("", 17)]
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=opset, ir_version=8)
    return model


_MAKERS = (weekly_sales, retrieval, proposals)
COMPUTED = {one.__name__: Kind(name=one.__name__, half="independent", make=one) for one in _MAKERS}

"""Models that are computed in a second, for constants that no other model reads."""

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


COMPUTED = {"weekly_sales": Kind(name="weekly_sales", half="independent", make=weekly_sales)}

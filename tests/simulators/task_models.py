"""Nine small trained models with a ground truth, of the kinds that are easily misjudged.

    task = task_model("forecast")
    onnx.save(task.model, model_file)
    result = build(model_file, calibration=task.calibration, ...)
    retained("forecast", variant_file)      # share of the float model's accuracy, on fresh data

`task.outputs` has the declarations for edgepack.toml, `task.shapes` the shapes that NPUs need.
"""

from functools import cache
from pathlib import Path

import onnx
import onnxruntime

from benchmarks.task_kinds.examples import EXAMPLES
from benchmarks.task_kinds.kind import TaskModel
from benchmarks.tasks.float_model import open_on_cpu
from benchmarks.tasks.task import Run

NAMES = tuple(EXAMPLES)


@cache
def task_model(name: str) -> TaskModel:
    """Train or compute the model of a name, once in a process."""
    return EXAMPLES[name]()


def open_run(model: Path | onnx.ModelProto) -> Run:
    """Open a model on ONNX Runtime's CPU provider, with the exact integer products of an NPU."""
    content = model if isinstance(model, Path) else model.SerializeToString()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    return open_on_cpu(content, options)


@cache
def float_accuracy(name: str) -> float:
    """Return the float model's accuracy at its task, on fresh data."""
    task = task_model(name)
    return task.measure(open_run(task.model))


def retained(name: str, variant: Path) -> float:
    """Return a variant's accuracy at the task as a share of the float model's, on fresh data."""
    return task_model(name).measure(open_run(variant)) / float_accuracy(name)

"""The float model on the CPU provider: the reference of every variant."""

from pathlib import Path

import onnxruntime

from benchmarks.tasks.task import Array, Feeds, Run


def open_float_model(model: Path) -> Run:
    """Load a model as shipped, on a single thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    return open_on_cpu(model, options)


def open_on_cpu(model: Path | bytes, options: onnxruntime.SessionOptions) -> Run:
    """Load a model, or the content of its file, on ONNX Runtime's CPU provider."""
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def run(feeds: Feeds) -> dict[str, Array]:
        return dict(zip(names, session.run(None, feeds), strict=True))

    return run

"""The models of the benchmark, for its clients: nothing here loads a library."""

from pathlib import Path
from typing import Any, NamedTuple


class Subject(NamedTuple):
    """A model.

    Attributes:
        name: Its name.
        ms: Wanted duration of an inference with one thread, milliseconds; 0 for the least.
        shape: Of its input, float32.
        width: Of its matrices; 0 for a model that only reads four values.
    """

    name: str
    ms: float
    shape: tuple[int, ...]
    width: int


SUBJECTS = (
    Subject("ms-0.003", 0.0, (1, 16), 0),
    Subject("ms-0.05", 0.05, (1, 256), 256),
    Subject("ms-3", 3.0, (1, 1024), 1024),
    Subject("ms-30", 30.0, (1, 1024), 1024),
)
LARGE = Subject("mb-10", 0.0, (1, 2_500_000), 0)
"""A model with an input of 10 MB, of which four values are read."""


def open_bare(path: Path) -> Any:
    """Open a model in bare ONNX Runtime, with one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

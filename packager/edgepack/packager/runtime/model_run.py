"""Running a model on samples, and how far two models' outputs are apart."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

from edgepack.agent.runtime.opening import (
    FATAL_ONLY,
    ProviderSettings,
    open_model_file,
    without_spinning,
)
from edgepack.errors import BuildError, DeviceError
from edgepack.packager.graph.held_weights import save_for_session
from edgepack.packager.graph.model_files import open_on_cpu
from edgepack.packager.graph.source_quantization import PACKED_PRODUCT
from edgepack.packager.runtime.provider_session import run_of_provider
from edgepack.packager.tensors.sequence import Feeds, Samples, digest_of
from edgepack.tasks.arrays import Outputs
from edgepack.tasks.description import NOT_EVALUATED, NOTHING_KNOWN, ModelDescription

Run = Callable[[Feeds], Outputs]
"""One inference."""


def remember(run: Run) -> Run:
    """Return a function that computes an inference once, and remembers its outputs."""
    known: dict[bytes, Outputs] = {}

    def recall(feeds: Feeds) -> Outputs:
        key = digest_of(feeds)
        if key not in known:
            known[key] = run(feeds)
        return known[key]

    return recall


class ModelRunner:
    """A model on the CPU provider, ready to run.

    Args:
        model: The model; written to `path`.
        path: Where; its folder must exist.
        threads: Intra-op threads; 0 leaves the number to ONNX Runtime.
        optimize: See `open_on_cpu`.

    Attributes:
        run: Runs an inference.
    """

    def __init__(
        self, model: onnx.ModelProto, path: Path, *, threads: int = 0, optimize: bool = True
    ) -> None:
        save_for_session(model, path)
        # Without optimization, ONNX Runtime 1.31 computes zeros from packed weights of MatMulNBits.
        is_sound = optimize or not any(one.op_type in PACKED_PRODUCT for one in model.graph.node)
        self.run = run_of(open_on_cpu(path, threads=threads, optimize=optimize, prepack=is_sound))

    def run_all(self, samples: Samples) -> tuple[Outputs, ...]:
        """Return all samples, in order."""
        return tuple(self.run(feeds) for feeds in samples)


def run_of(session: onnxruntime.InferenceSession, only: Sequence[str] = ()) -> Run:
    """Return a function that runs an inference in a session; feeds that its model does not read are
    left out.

    Args:
        session: The session.
        only: The outputs that are asked for, if not all are.
    """
    inputs = {value.name for value in session.get_inputs()}
    outputs = [*only] or [value.name for value in session.get_outputs()]

    def run(feeds: Feeds) -> Outputs:
        used = {name: value for name, value in feeds.items() if name in inputs}
        return dict(zip(outputs, session.run(outputs, used), strict=True))

    return run


def open_on_provider(path: Path, settings: ProviderSettings, *, threads: int = 0) -> Run:
    """Open a model as a device does, but for threads that spin.

    Raises:
        BuildError: ONNX Runtime refuses the model.
    """
    try:
        session = open_model_file(
            path, without_spinning(settings), threads=threads, log_severity=FATAL_ONLY
        )
    except DeviceError as error:
        raise BuildError(error.problem, found_in=path.name, remedy=error.remedy) from error
    return run_of_provider(session)


def largest_difference(
    expected: Sequence[Outputs],
    got: Sequence[Outputs],
    description: ModelDescription = NOTHING_KNOWN,
) -> float:
    """Return greatest root-mean-square error of any output, as a share of its root-mean-square.

    Args:
        expected, got: Outputs by name, a dict per sample.
        description: Meaning of the outputs: the rows of a selection may change places, and ignored
            outputs may be anything.

    Returns:
        0 for equal outputs; infinity where `got` holds NaN or other shapes.
    """
    worst = 0.0
    for before, after in zip(expected, got, strict=True):
        for name, value in before.items():
            if value.dtype.kind != "f" or description.task_of(name) in NOT_EVALUATED:
                continue
            other = after[name]
            if other.shape != value.shape:
                return float("inf")
            finite = np.isfinite(value)
            if not np.array_equal(finite, np.isfinite(other)):
                return float("inf")
            wide = value.astype(np.float64)[finite]
            error = other.astype(np.float64)[finite] - wide
            size = float(np.sqrt(np.mean(wide**2))) if wide.size else 0.0
            rms = float(np.sqrt(np.mean(error**2))) if wide.size else 0.0
            worst = max(worst, rms / max(size, 1e-6))
    return worst

"""Calibration: what values each tensor takes, in two passes and constant memory.

The first pass takes bounds: ReduceMin and ReduceMax are added to the graph, so that two numbers
leave ONNX Runtime for each tensor. They may be infinite, as the logarithm of nothing is. The second
pass, taken only when a method asks for it, takes histograms between those bounds from at most
`VALUES_A_SAMPLE` evenly spaced values of a tensor; which ones moves on from sample to sample.
Nothing is kept of a sample once it is counted.
"""

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from msgspec.structs import replace
from onnx import TensorProto, helper

from edgepack.agent.runtime.runtime_words import first_line
from edgepack.errors import BuildError
from edgepack.packager.graph.held_weights import save_for_session
from edgepack.packager.graph.model_files import RUNTIME_ERRORS, open_on_cpu
from edgepack.packager.graph.subsampling import PHASE, add_subsamples
from edgepack.packager.progress import BuildStep, Progress
from edgepack.packager.tensors.observations import (
    BINS,
    NOTHING_SEEN,
    Observation,
    count_into,
)
from edgepack.packager.tensors.sequence import Feeds, Samples

VALUES_A_SAMPLE = 16384


class Calibration:
    """Observes tensors of a model on samples; results are kept, so each pass runs once.

    Args:
        model: The float model.
        tensors: Names of the float tensors to observe.
        samples: Calibration samples.
        work_dir: Folder for the instrumented models.
        progress: Told about each sample.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        tensors: Sequence[str],
        samples: Samples,
        *,
        work_dir: Path,
        progress: Progress,
    ) -> None:
        self._model = model
        self._tensors = tuple(tensors)
        self._samples = samples
        self._folder = work_dir
        self._progress = progress
        self._bounds: dict[str, Observation] | None = None
        self._histograms: dict[str, Observation] | None = None

    def bounds(self) -> dict[str, Observation]:
        """Least and greatest value of each tensor.

        Raises:
            BuildError: A tensor holds NaN on some sample, or a sample does not run.
        """
        if self._bounds is None:
            self._bounds = self._take_bounds()
        return self._bounds

    def histograms(self) -> dict[str, Observation]:
        """Bounds and histogram of each tensor.

        Raises:
            BuildError: See `bounds`.
        """
        if self._histograms is None:
            self._histograms = self._take_histograms(self.bounds())
        return self._histograms

    def _take_bounds(self) -> dict[str, Observation]:
        if not self._tensors:
            return {}
        model = deepcopy(self._model)
        for name in self._tensors:
            for reduce in ("ReduceMin", "ReduceMax"):
                output = f"{name}/{reduce}"
                model.graph.node.append(
                    helper.make_node(reduce, [name], [output], name=output, keepdims=0)
                )
                model.graph.output.append(
                    helper.make_tensor_value_info(output, TensorProto.FLOAT, [])
                )
        low = np.full(len(self._tensors), np.inf)
        high = np.full(len(self._tensors), -np.inf)
        session = self._open(model, "bounds")
        names = [f"{name}/{kind}" for kind in ("ReduceMin", "ReduceMax") for name in self._tensors]
        for number, feeds in enumerate(self._samples, start=1):
            values = np.array(self._run(session, names, feeds, number), dtype=np.float64)
            least, greatest = np.split(values, 2)
            is_empty = (least == np.inf) & (greatest == -np.inf)  # what ONNX makes of no values
            self._refuse_nan(np.isnan(least) | np.isnan(greatest), number)
            low = np.where(is_empty, low, np.minimum(low, least))
            high = np.where(is_empty, high, np.maximum(high, greatest))
            self._tell("calibrating", number)
        return {
            name: Observation(low=float(low[i]), high=float(high[i]))
            if low[i] <= high[i]
            else NOTHING_SEEN
            for i, name in enumerate(self._tensors)
        }

    def _take_histograms(self, bounds: dict[str, Observation]) -> dict[str, Observation]:
        tensors = [name for name, seen in bounds.items() if seen.is_finite]
        if not tensors:
            return bounds
        model = deepcopy(self._model)
        names = list(add_subsamples(model.graph, tensors, VALUES_A_SAMPLE))
        session = self._open(model, "histograms")
        counts = {name: np.zeros(BINS, dtype=np.int64) for name in tensors}
        for number, feeds in enumerate(self._samples, start=1):
            phase = {PHASE: np.array([number - 1], dtype=np.int64)}
            observed = self._run(session, names, {**feeds, **phase}, number)
            for name, values in zip(tensors, observed, strict=True):
                count_into(counts[name], values, bounds[name].low, bounds[name].high)
            self._tell("histograms", number)
        return {name: replace(seen, counts=counts.get(name)) for name, seen in bounds.items()}

    def _tell(self, what: str, number: int) -> None:
        self._progress(BuildStep(detail=what, done=number, total=self._samples.count))

    def _open(self, model: onnx.ModelProto, name: str) -> onnxruntime.InferenceSession:
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{name}.onnx"
        save_for_session(model, path)
        return open_on_cpu(path)

    def _run(
        self,
        session: onnxruntime.InferenceSession,
        names: list[str],
        feeds: Feeds,
        number: int,
    ) -> list[npt.NDArray[np.float32]]:
        known = {value.name for value in session.get_inputs()}
        used = {name: value for name, value in feeds.items() if name in known}
        try:
            return list(session.run(names, used))
        except RUNTIME_ERRORS as error:
            raise BuildError(
                f"calibration sample {number} does not run: {first_line(error)}",
                found_in=self._samples.source,
                remedy="check the samples' names, shapes and types against `edgepack inspect`",
            ) from error

    def _refuse_nan(self, is_nan: npt.NDArray[np.bool_], number: int) -> None:
        if is_nan.any():
            raise BuildError(
                f"tensor '{self._tensors[int(is_nan.argmax())]}' holds NaN on calibration sample "
                f"{number}",
                found_in=self._samples.source,
                remedy="check the sample; if it is right, the float model itself fails on it",
            )

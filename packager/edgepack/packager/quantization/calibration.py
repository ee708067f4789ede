"""Calibration: values of each tensor, in two passes and constant memory.

The first pass takes bounds: ReduceMin and ReduceMax are added to the graph, so that two numbers
leave ONNX Runtime for each tensor. The bounds may be infinite, such as the logarithm of 0. The
second pass, only for methods that need histograms, takes histograms between those bounds from at
most `VALUES_A_SAMPLE` evenly spaced values of a tensor; the places move on from sample to sample.
Nothing of a sample is kept after counting.
"""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import onnx
from msgspec.structs import replace
from onnx import TensorProto, helper

from edgepack.agent.runtime.runtime_words import first_line
from edgepack.errors import BuildError
from edgepack.packager.graph.held_weights import save_for_session
from edgepack.packager.graph.model_files import RUNTIME_ERRORS, open_on_cpu
from edgepack.packager.graph.subsampling import PHASE, add_subsamples
from edgepack.packager.progress import BuildStep, Progress
from edgepack.packager.runtime.model_run import run_of
from edgepack.packager.tensors.observations import (
    BINS,
    NOTHING_SEEN,
    Observation,
    count_into,
)
from edgepack.packager.tensors.sequence import Feeds, Samples
from edgepack.tasks.arrays import Bools, Singles

VALUES_A_SAMPLE = 16384


def observe(
    model: onnx.ModelProto,
    outputs: Sequence[str],
    samples: Samples,
    path: Path,
    progress: Progress,
    what: str,
) -> Iterator[list[Singles]]:
    """Run an instrumented model on calibration samples.

    Args:
        model: The model.
        outputs: Its outputs to look at.
        samples: Read once, individually.
        path: Where the model is written; its folder is made.
        progress: Called for each sample.
        what: Name of the step, for `progress`.

    Yields:
        The outputs on a sample, in their order.

    Raises:
        BuildError: A sample does not run.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    save_for_session(model, path)
    run = run_of(open_on_cpu(path), outputs)
    for number, feeds in enumerate(samples, start=1):
        try:
            values = [np.asarray(value, np.float32) for value in run(feeds).values()]
        except RUNTIME_ERRORS as error:
            raise BuildError(
                f"calibration sample {number} does not run: {first_line(error)}",
                found_in=samples.source,
                remedy="check the samples' names, shapes and types against `edgepack inspect`",
            ) from error
        yield values
        progress(BuildStep(detail=what, done=number, total=samples.count))


@dataclass(frozen=True)
class Calibration:
    """Observes tensors of a model on samples; results are kept, so each pass runs once.

    Attributes:
        model: The float model.
        tensors: Names of the float tensors to observe.
        samples: Calibration samples.
        work_dir: Folder for the instrumented models.
        progress: Called for each sample.
    """

    model: onnx.ModelProto
    tensors: Sequence[str]
    samples: Samples
    work_dir: Path
    progress: Progress

    @cached_property
    def bounds(self) -> dict[str, Observation]:
        """Least and greatest value of each tensor.

        Raises:
            BuildError: A tensor holds NaN on some sample, or a sample does not run.
        """
        if not self.tensors:
            return {}
        model = deepcopy(self.model)
        for name in self.tensors:
            for reduce in ("ReduceMin", "ReduceMax"):
                output = f"{name}/{reduce}"
                model.graph.node.append(
                    helper.make_node(reduce, [name], [output], name=output, keepdims=0)
                )
                model.graph.output.append(
                    helper.make_tensor_value_info(output, TensorProto.FLOAT, [])
                )
        low = np.full(len(self.tensors), np.inf)
        high = np.full(len(self.tensors), -np.inf)
        names = [f"{name}/{kind}" for kind in ("ReduceMin", "ReduceMax") for name in self.tensors]
        for number, values in enumerate(self._observe(model, names, "bounds", "calibrating")):
            least, greatest = np.split(np.array(values, dtype=np.float64), 2)
            is_empty = (least == np.inf) & (greatest == -np.inf)  # what ONNX makes of no values
            self._refuse_nan(np.isnan(least) | np.isnan(greatest), number)
            low = np.where(is_empty, low, np.minimum(low, least))
            high = np.where(is_empty, high, np.maximum(high, greatest))
        return {
            name: Observation(low=float(low[i]), high=float(high[i]))
            if low[i] <= high[i]
            else NOTHING_SEEN
            for i, name in enumerate(self.tensors)
        }

    @cached_property
    def histograms(self) -> dict[str, Observation]:
        """Bounds and histogram of each tensor.

        Raises:
            BuildError: See `bounds`.
        """
        bounds = self.bounds
        tensors = [name for name, seen in bounds.items() if seen.is_finite]
        if not tensors:
            return bounds
        model = deepcopy(self.model)
        names = add_subsamples(model.graph, tensors, VALUES_A_SAMPLE)
        counts = {name: np.zeros(BINS, dtype=np.int64) for name in tensors}
        for observed in self._observe(model, names, "histograms", "histograms"):
            for name, values in zip(tensors, observed, strict=True):
                count_into(counts[name], values, bounds[name].low, bounds[name].high)
        return {name: replace(seen, counts=counts.get(name)) for name, seen in bounds.items()}

    def _observe(
        self, model: onnx.ModelProto, names: Sequence[str], file: str, what: str
    ) -> Iterator[list[Singles]]:
        def read(index: int) -> Feeds:
            return {**self.samples.read(index), PHASE: np.array([index], dtype=np.int64)}

        path = self.work_dir / f"{file}.onnx"
        return observe(model, names, replace(self.samples, read=read), path, self.progress, what)

    def _refuse_nan(self, is_nan: Bools, number: int) -> None:
        if is_nan.any():
            raise BuildError(
                f"tensor '{self.tensors[int(is_nan.argmax())]}' holds NaN on a calibration sample",
                found_in=self.samples.title(number),
                remedy="check the sample; if it is right, the float model itself fails on it",
            )

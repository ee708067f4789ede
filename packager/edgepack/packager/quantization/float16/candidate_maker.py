"""Makes candidates that compute in 16-bit floats, except where these would overflow or vanish.

Which tensors would is measured on the calibration samples. Inputs, outputs and what the bodies of
control flow read stay 32-bit.
"""

from collections.abc import Mapping
from pathlib import Path

import onnx

from edgepack.packager.graph.queries import index_graph
from edgepack.packager.graph.workload import Workload, workloads
from edgepack.packager.profiles.pass_settings import Float16
from edgepack.packager.progress import Progress
from edgepack.packager.quantization.calibration import Calibration
from edgepack.packager.quantization.contract import (
    BuiltCandidate,
    CandidateSpec,
)
from edgepack.packager.quantization.float16.plan import Float16Planner
from edgepack.packager.quantization.float16.writer import write_float16
from edgepack.packager.quantization.method import QuantizationMethod
from edgepack.packager.quantization.one_at_a_time import OneAtATimeMaker
from edgepack.packager.runtime.float16_rounding import open_rounding
from edgepack.packager.runtime.model_run import Run
from edgepack.packager.tensors.sequence import Samples


class Float16CandidateMaker(OneAtATimeMaker):
    """One float model with the bounds of its tensors.

    Args:
        model: The float model, clean and with shapes.
        settings: The profile's pass.
        samples: Calibration samples.
        work_dir: Folder for instrumented models.
        progress: Told about calibration.
    """

    verb = "converted"
    methods = (QuantizationMethod(base="float16"),)

    def __init__(
        self,
        model: onnx.ModelProto,
        settings: Float16,
        samples: Samples,
        *,
        work_dir: Path,
        progress: Progress,
    ) -> None:
        super().__init__(model, work_dir)
        self._index = index_graph(model.graph)
        opsets = {
            "" if entry.domain == "ai.onnx" else entry.domain: entry.version
            for entry in model.opset_import
        }
        self._planner = Float16Planner(
            self._index, opsets, settings.exclude_ops, settings.activation_max
        )
        calibration = Calibration(
            model, self._planner.observable(), samples, work_dir=work_dir, progress=progress
        )
        self._observed = calibration.bounds
        self.names = tuple(self._planner.choices(self._observed))

    def build(self, spec: CandidateSpec) -> BuiltCandidate:
        """See `CandidateMaker`."""
        kept = set(spec.float_nodes)
        lowered = tuple(name for name in self.names if name not in kept)
        plan = self._planner.plan(lowered, self._observed)
        model = write_float16(self._model, self._index, plan)
        return BuiltCandidate(model=model, lowered=lowered)

    def _workloads(self) -> Mapping[str, Workload]:
        return workloads(self._index)

    def _open(self, path: Path) -> Run:
        return open_rounding(path)

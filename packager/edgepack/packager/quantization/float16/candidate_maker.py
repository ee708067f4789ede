"""Makes candidates that compute in 16-bit floats, except where these would overflow or vanish.

Which tensors would is measured on the calibration samples. Inputs, outputs and tensors read by the
bodies of control flow stay 32-bit.
"""

from pathlib import Path

from edgepack.packager.graph.model_files import opsets_of
from edgepack.packager.graph.queries import index_graph
from edgepack.packager.graph.workload import workloads
from edgepack.packager.profiles.pass_settings import Float16
from edgepack.packager.quantization.calibration import Calibration
from edgepack.packager.quantization.contract import (
    BuiltCandidate,
    CandidateSpec,
)
from edgepack.packager.quantization.float16.plan import Float16Planner
from edgepack.packager.quantization.float16.writer import Float16Writer
from edgepack.packager.quantization.method import QuantizationMethod
from edgepack.packager.quantization.one_at_a_time import OneAtATimeMaker
from edgepack.packager.runtime.float16_rounding import open_rounding
from edgepack.packager.runtime.model_run import Run


class Float16CandidateMaker(OneAtATimeMaker[Float16]):
    """Candidate maker for a float model."""

    verb = "converted"
    methods = (QuantizationMethod(base="float16"),)

    def __post_init__(self) -> None:
        model = self.model
        settings = self.settings
        self._index = index_graph(model.graph)
        self._planner = Float16Planner(
            self._index, opsets_of(model), settings.exclude_ops, settings.activation_max
        )
        tensors = self._planner.observable()
        calibration = Calibration(model, tensors, self.samples, self.work_dir, self.progress)
        self._observed = calibration.bounds
        self.names = tuple(self._planner.choices(self._observed))
        self._loads = workloads(self._index)

    def build(self, spec: CandidateSpec) -> BuiltCandidate:
        """Build a candidate; see `CandidateMaker`."""
        lowered = self._lowered(spec)
        plan = self._planner.plan(lowered, self._observed)
        model = Float16Writer(self.model, self._index, plan).write()
        return BuiltCandidate(model=model, lowered=lowered)

    def _open(self, path: Path) -> Run:
        return open_rounding(path)

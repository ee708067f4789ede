"""What a choice between a quantized model and the float one rests on, and what it comes to."""

from collections.abc import Mapping
from pathlib import Path

import msgspec
import onnx
from msgspec.structs import replace

from edgepack.packager.gates.user_metric import Metric
from edgepack.packager.graph.model_files import size_on_disk
from edgepack.packager.progress import Progress
from edgepack.packager.runtime.model_run import Run
from edgepack.packager.search.candidates import SearchResult
from edgepack.packager.tensors.sequence import SampleSplit

FLOAT_PRECISION = "fp32"


class EvaluationInputs(msgspec.Struct, frozen=True, kw_only=True):
    """What every choice of a build rests on, whatever is tried.

    Attributes:
        split: Samples for ranges and for choosing.
        float_source: Runs the source model.
        metric: The user's own metric, or None.
        progress: Told about each step.
    """

    split: SampleSplit
    float_source: Run
    metric: Metric | None
    progress: Progress


class PreparedFloat(msgspec.Struct, frozen=True, kw_only=True):
    """The float model after its passes.

    Attributes:
        model: In memory.
        path: As a file.
        notes: What the passes left and noted.
    """

    model: onnx.ModelProto
    path: Path
    notes: tuple[str, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Size of the file."""
        return size_on_disk(self.path)


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """The model that goes on to the gates.

    Attributes:
        path: The model, in the work folder.
        precision: What it is.
        found: What the search tried; None where nothing was quantized.
        notes: Decisions on the way, without times.
        timed_notes: The same with times.
        latency_ms, float_latency_ms: Medians; None where its provider is not here.
        latencies_ms: Medians of the best candidate, whether it is this model or not, and of others,
            by their words and their accuracy: words alone may come twice.
    """

    path: Path
    precision: str
    found: SearchResult | None
    notes: tuple[str, ...]
    latency_ms: float | None
    float_latency_ms: float | None
    latencies_ms: Mapping[tuple[str, float], float] = msgspec.field(default_factory=dict)
    timed_notes: tuple[str, ...] = ()

    @property
    def is_lowered(self) -> bool:
        """Whether it is the search's best candidate, and not the float model."""
        return self.found is not None and self.path == self.found.best.path

    def with_float_model(self, prepared: Path) -> "Selection":
        """The float model in its place; what was tried stays known."""
        return replace(
            self,
            path=prepared,
            precision=FLOAT_PRECISION,
            notes=(),
            timed_notes=(),
            latency_ms=self.float_latency_ms,
        )

    @property
    def may_go_on(self) -> bool:
        """Whether a search could find something nearer: it stopped at what was near enough."""
        return self.is_lowered and self.holds

    @property
    def holds(self) -> bool:
        """Whether it is within the accuracy budget on the search samples."""
        return self.found is None or not self.is_lowered or self.found.best.verdict.passed

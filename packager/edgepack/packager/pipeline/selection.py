"""Values of a variant's way through the pipeline: inputs, plan and selection."""

from collections.abc import Mapping
from pathlib import Path

import msgspec
import onnx
from msgspec.structs import replace

from edgepack.agent.runtime.fixed_decoder import FixedSizes
from edgepack.packager.gates.labels import LabelledSamples
from edgepack.packager.gates.user_metric import Metric
from edgepack.packager.graph.model_files import size_on_disk
from edgepack.packager.profiles.schema import Profile
from edgepack.packager.reports.reasons import FLOAT_PRECISION
from edgepack.packager.runtime.evaluator import Evaluator, Venue
from edgepack.packager.runtime.model_run import Run
from edgepack.packager.runtime.plain_runtime import PlainRelease
from edgepack.packager.search.candidates import SearchResult
from edgepack.packager.search.combinations import Combination
from edgepack.packager.search.speedup import Speedup
from edgepack.packager.source.model import SourceModel
from edgepack.packager.tensors.sequence import Samples, SampleSplit


class EvaluationInputs(msgspec.Struct, frozen=True, kw_only=True):
    """Inputs of every variant's preparation and evaluation.

    Attributes:
        source: The source model, with static shapes if a profile needs them.
        split: Samples for ranges, for choosing, and for the verdict.
        provider_samples: Some of the held-out samples, golden samples first; as many as the
            provider's speed allows run on the provider.
        float_source: Runs the source model.
        metric: The user's own metric, which then decides in place of agreement with the float
            model; or None.
        labelled: Held-out samples with labels, which then give the verdict; candidates are still
            chosen by their agreement with the float model. None where there are none.
        fixed: Sizes of a decoder with fixed shapes; None for other models.
    """

    source: SourceModel
    split: SampleSplit
    provider_samples: Samples
    float_source: Run
    metric: Metric | None = None
    labelled: LabelledSamples | None = None
    fixed: FixedSizes | None = None


class VariantPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Plan of a profile's variant.

    Attributes:
        combinations: The profile with each combination of searched settings, at least 1, in the
            order to try.
        venue: Where the profile can run here.
        plain_releases: Where its variant runs in ONNX Runtime by itself.
        allow_degraded: Publish a variant that gates refuse, marked.
        is_strict: Reject a variant with a weak verdict.
    """

    combinations: tuple[Combination, ...]
    venue: Venue
    plain_releases: tuple[PlainRelease, ...] = ()
    allow_degraded: bool = False
    is_strict: bool = False

    @property
    def profile(self) -> Profile:
        """The profile with the settings that are tried first."""
        return self.combinations[0].profile


def describe_float_instead(because: str) -> str:
    """Return a note that the float model is published, and why."""
    return f"The float model is published: {because}."


class PreparedFloat(msgspec.Struct, frozen=True, kw_only=True):
    """The float model after its passes.

    Attributes:
        model: In memory.
        published: The file to publish if nothing lowered is published: the same model, or the
            source model with its quantized weights.
        precision: Precision of the published file.
        notes: Notes of the passes.
    """

    model: onnx.ModelProto
    published: Path
    precision: str = FLOAT_PRECISION
    notes: tuple[str, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Size of the file."""
        return size_on_disk(self.published)


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """The model that continues to the gates.

    Attributes:
        path: The model, in the work folder.
        precision: Precision of the model.
        found: Attempts of the search; None if nothing was quantized.
        notes: Decisions on the way, without times.
        timed_notes: The same with times.
        float_because: Why the float model replaces a quantized model; "" for a quantized model.
        latency_ms, float_latency_ms: Medians; None where its provider is not here.
        speedup: The races of the best candidate against the float model; None where none ran.
        latencies_ms: Medians of the best candidate, whether this model or not, and of others, by
            their words and their accuracy: words alone may occur twice.
    """

    path: Path
    precision: str
    found: SearchResult | None = None
    notes: tuple[str, ...] = ()
    latency_ms: float | None = None
    float_latency_ms: float | None = None
    latencies_ms: Mapping[tuple[str, float], float] = msgspec.field(default_factory=dict)
    timed_notes: tuple[str, ...] = ()
    speedup: Speedup | None = None
    float_because: str = ""

    @property
    def is_lowered(self) -> bool:
        """True if this model is the search's best candidate, and not the float model."""
        return self.found is not None and self.path == self.found.best.path

    @property
    def holds(self) -> bool:
        """True if the model is within the accuracy budget on the search samples."""
        return self.found is None or not self.is_lowered or self.found.best.verdict.passed

    @property
    def can_improve(self) -> bool:
        """True if a search could find a nearer candidate: the search stopped at a sufficient
        candidate.
        """
        return self.is_lowered and self.holds

    def with_float_model(self, prepared: PreparedFloat, because: str) -> "Selection":
        """Return the selection of the float model, with the reason; attempts are kept."""
        return replace(
            self,
            path=prepared.published,
            precision=prepared.precision,
            notes=(),
            timed_notes=(),
            latency_ms=self.float_latency_ms,
            float_because=because,
        )


class SearchedCombination(msgspec.Struct, frozen=True, kw_only=True):
    """Combination of settings with its selected model.

    Attributes:
        combination: Its settings.
        venue: Where its profile can run here.
        prepared: The float model after its passes.
        selection: The model that continues to the gates.
        notes: Which combination was taken of several.
    """

    combination: Combination
    venue: Venue
    prepared: PreparedFloat
    selection: Selection
    notes: tuple[str, ...] = ()

    @property
    def profile(self) -> Profile:
        """The profile with the combination's values."""
        return self.combination.profile

    @property
    def evaluator(self) -> Evaluator:
        """Evaluator of the combination's candidates."""
        return Evaluator(self.profile, self.venue)

    @property
    def size_bytes(self) -> int:
        """Size of the model that continues to the gates."""
        found = self.selection.found
        if found is None or not self.selection.is_lowered:
            return self.prepared.size_bytes
        return found.best.measured.size_bytes

    def with_attempts_of(self, further: "SearchedCombination") -> "SearchedCombination":
        """Return the same model, with later attempts."""
        found, tried = self.selection.found, further.selection.found
        if found is None or tried is None:
            return self
        found = replace(found, attempts=tried.attempts)
        return replace(self, selection=replace(self.selection, found=found))

    def with_selection(self, selection: Selection) -> "SearchedCombination":
        """Return another model, with earlier attempts."""
        before, found = self.selection.found, selection.found
        if before is not None and found is not None:
            attempts = tuple(dict.fromkeys((*before.attempts, *found.attempts)))
            selection = replace(selection, found=replace(found, attempts=attempts))
        return replace(self, selection=selection)

    def with_float_model(self, because: str) -> "SearchedCombination":
        """Return the same with the prepared float model in place of the best candidate, and why."""
        selection = self.selection.with_float_model(self.prepared, because)
        return replace(self, selection=selection)

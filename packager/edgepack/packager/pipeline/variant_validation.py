"""Validation of a candidate: by held-out samples, and by a run on the provider itself.

The inspection comes before the provider's run: a simulator takes 200 MB, and stays until the
rehearsal.
"""

from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import asdict, replace

from edgepack.number_format import format_metric
from edgepack.packager.gates.proof import is_doubtful
from edgepack.packager.gates.tolerances import Seen
from edgepack.packager.graph.adapter_branches import add_branches
from edgepack.packager.graph.explicit_attributes import write_defaults
from edgepack.packager.graph.model_files import load_model, save_model
from edgepack.packager.pipeline.board_validation import prove_on_boards
from edgepack.packager.pipeline.holdout_verdict import (
    HoldoutVerdict,
    doubt_extremes,
    judge_on_holdout,
)
from edgepack.packager.pipeline.provider_validation import (
    ProviderRefusedError,
    ProviderRun,
    ProviderValidation,
)
from edgepack.packager.pipeline.selection import EvaluationInputs, SearchedCombination
from edgepack.packager.pipeline.settings_search import SettingsSearch
from edgepack.packager.pipeline.unsupported_nodes import exclude_unsupported
from edgepack.packager.profiles.schema import Limits
from edgepack.packager.progress import BuildStep, Progress
from edgepack.packager.reports.report import BoardResult
from edgepack.packager.runtime.deadline import Deadline, OutOfTimeError
from edgepack.packager.runtime.inspection import Inspection, inspect
from edgepack.packager.runtime.model_run import remember
from edgepack.packager.search.time_limit import TimeLimit
from edgepack.packager.source.model import SourceModel
from edgepack.packager.source.watched_outputs import without_watched

MODEL_FILE = "model.onnx"

_MOST_TIMES_REFUSED = 3
"""How often nodes are left float for a provider that refuses the whole graph."""


class ValidatedCombination(HoldoutVerdict, frozen=True, kw_only=True):
    """A model with its verdict, within the budget or not.

    Attributes:
        searched: The searched combination.
        size_bytes: Size of the model that was written.
        provider_run: Result of the run on the provider; None if the provider cannot run here, or
            before the run.
        inspection: Result of the inspection; None if nothing was lowered.
        is_out_of_time: Whether its run on the provider was left out, or ended, for want of time.
        boards: Results of the boards; the verdict is then that of the board with the least margin.
        on_stand_in: Errors of the outputs on the CPU's stand-in, where boards gave the verdict.
        notes: How often the search went on, and why.
    """

    searched: SearchedCombination
    size_bytes: int
    provider_run: ProviderRun | None = None
    inspection: Inspection | None = None
    is_out_of_time: bool = False
    boards: tuple[BoardResult, ...] = ()
    on_stand_in: Seen | None = None
    notes: tuple[str, ...] = ()

    @property
    def is_sure(self) -> bool:
        """True if the held-out samples pass the model without the tolerated mismatch, and with a
        sufficient margin.

        A model with too large an expected loss on other samples is not sure either.
        """
        verdict = self.verdict
        in_doubt = verdict.forgiven or verdict.is_costly or is_doubtful(verdict)
        return verdict.passed and not in_doubt

    @property
    def is_refused_by_provider(self) -> bool:
        """True if the provider computes something else than the CPU's stand-in."""
        return self.provider_run is not None and self.provider_run.refusal is not None

    def with_note(self, note: str) -> "ValidatedCombination":
        """Return the same with another note."""
        return replace(self, notes=(*self.notes, note))


def measured_model(work_dir: Path, source: SourceModel) -> Path:
    """Return the model that a variant is judged by: its own, with the outputs that are only
    watched.
    """
    return work_dir / ("measured" if source.watched else "variant") / MODEL_FILE


@dataclass(frozen=True)
class VariantValidator:
    """Writes a variant's model and validates the model.

    Attributes:
        inputs: Samples for the evaluation.
        provider_validation: Runs the model on its provider.
        work_dir: The variant is written in its folder `variant`.
        progress: Called for each step.
        limit: The time of the search, of the profile, and of the build.
    """

    inputs: EvaluationInputs
    provider_validation: ProviderValidation
    work_dir: Path
    progress: Progress
    limit: TimeLimit

    def validate(
        self,
        search: SettingsSearch,
        searched: SearchedCombination,
        notes: tuple[str, ...],
        deadline: Deadline,
    ) -> ValidatedCombination:
        """Evaluate on held-out samples; a sure candidate runs on the provider.

        Args:
            search: Leaves nodes float that the provider refuses.
            searched: The candidate.
            notes: Notes on earlier steps.
            deadline: When the verdict must be there.

        Raises:
            BuildError: The model cannot be run, or the provider rejects the whole model.
            OutOfTimeError: There is no verdict until then.
        """
        with deadline.interrupting():
            validated = self._judge(searched, notes, deadline)
        return self.run_on_provider(search, validated) if validated.is_sure else validated

    def write_again(self, validated: ValidatedCombination) -> None:
        """Write a model again in the place of a later written model."""
        self._write(validated.searched)

    def run_on_provider(
        self, search: SettingsSearch, validated: ValidatedCombination
    ) -> ValidatedCombination:
        """Run the model on the provider; nodes that make the provider reject the whole graph stay
        float.

        Raises:
            BuildError: The provider rejects the whole model.
        """
        for _ in range(_MOST_TIMES_REFUSED):
            try:
                return self._run_in_time(validated)
            except ProviderRefusedError as error:
                left = exclude_unsupported(
                    search, validated.searched, error, self.provider_validation, self.progress
                )
            with self.limit.build.interrupting():
                notes = (*validated.notes, left.note)
                validated = self._judge(left.searched, notes, self.limit.build)
        return self._run_in_time(validated)

    def inspect(self, searched: SearchedCombination) -> Inspection | None:
        """Look inside the best lowered candidate, published or not; only informs, so not in haste.

        Returns:
            The inspection; None if nothing was lowered, or the time of the search is used up.
        """
        if searched.selection.found is None or self.limit.left_s == 0.0:
            return None
        self.progress(BuildStep(what="looking at the error of each layer"))
        best = searched.selection.found.best
        origin = best.origin.model
        try:
            with self.limit.profile.interrupting():
                return inspect(
                    searched.prepared.model if origin is None else origin,
                    best.path,
                    self.inputs.split.held_out,
                    calibrated=best.origin.observed,
                    work_dir=self.work_dir,
                )
        except OutOfTimeError:
            return None

    def _write(self, searched: SearchedCombination) -> int:
        source = self.inputs.source
        final = self.work_dir / "variant" / MODEL_FILE
        measured = measured_model(self.work_dir, source)
        limits = searched.profile.limits
        return _write(searched.selection.path, source, final, measured, limits)

    def _judge(
        self, searched: SearchedCombination, notes: tuple[str, ...], deadline: Deadline
    ) -> ValidatedCombination:
        self.provider_validation.load_ahead(searched.profile, searched.venue)
        size_bytes = self._write(searched)
        self.progress(BuildStep(what="held-out samples"))
        run = deadline.run_in_time(
            searched.evaluator.open(measured_model(self.work_dir, self.inputs.source))
        )
        if self.inputs.split.extremes is not None:
            run = remember(run)
        budgets = searched.profile.gates.accuracy
        judged = judge_on_holdout(run, budgets, self.inputs)
        held_out = doubt_extremes(run, budgets, self.inputs, judged)
        verdict = held_out.verdict
        outcome = f"{verdict.what} {format_metric(verdict.value)}, the budget is "
        outcome += format_metric(verdict.shown_budget)
        self.progress(BuildStep(what="held-out samples", outcome=outcome))
        return ValidatedCombination(
            **asdict(held_out), searched=searched, size_bytes=size_bytes, notes=notes
        )

    def _run_in_time(self, validated: ValidatedCombination) -> ValidatedCombination:
        """Run the model on the provider if time is left; the verdict exists already."""
        profile = validated.searched.profile
        try:
            return self._run(validated)
        except OutOfTimeError:
            measured = validated.searched.evaluator.provider
            note = (
                f"The time of the build was used up before it ran on {profile.device.provider}: "
                f"accuracy is measured on {measured}, placement is not known."
            )
            return replace(validated.with_note(note), is_out_of_time=True)

    def _run(self, validated: ValidatedCombination) -> ValidatedCombination:
        searched = validated.searched
        if not searched.venue.can_run:
            return validated
        inspection = self.inspect(searched)
        measured = measured_model(self.work_dir, self.inputs.source)
        if searched.venue.boards:
            proven = prove_on_boards(
                measured, searched, validated.seen, self.inputs, self.provider_validation
            )
            return replace(
                validated,
                **asdict(proven.judged),
                inspection=inspection,
                provider_run=proven.run,
                boards=proven.results,
                on_stand_in=validated.seen,
            )
        run = self.provider_validation.run(measured, searched.evaluator, validated.seen.errors)
        return replace(validated, inspection=inspection, provider_run=run)


def _write(
    path: Path,
    source: SourceModel,
    final: Path,
    measured: Path,
    limits: Limits,
) -> int:
    """Write the variant's model with the metadata of the source, which applications read."""
    model = load_model(path)
    if source.texts is not None and source.texts.places is not None:
        add_branches(model, source.texts.places, source.model.graph)
    write_defaults(model, limits.explicit_attributes)
    del model.metadata_props[:]
    model.metadata_props.extend(sorted(source.model.metadata_props, key=lambda entry: entry.key))
    model.producer_name = "edgepack"
    model.producer_version = ""
    final.parent.mkdir(exist_ok=True)
    if measured != final:
        measured.parent.mkdir(exist_ok=True)
        save_model(model, measured)
        without_watched(model, source.watched)
    return save_model(model, final)

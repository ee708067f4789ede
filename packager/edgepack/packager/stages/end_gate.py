"""The gate at the end of a pipeline: outputs of a variant against the float pipeline's.

The budget is the pipeline's alone. Where a variant does not hold it, each stage that is not float
is replaced by its float form in turn, and the replacement that helps most stays; and again, until
the budget holds. So the stages share the loss, and the stage that costs most is given back first.
"""

import hashlib
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from edgepack.agent.config import ProviderConfig
from edgepack.agent.runtime.facts import read_device_facts
from edgepack.agent.runtime.provider_table import CPU_PROVIDER
from edgepack.bundle.drift import confidence_shifts
from edgepack.bundle.manifest import (
    Accuracy,
    Placement,
    Requirements,
    Toolchain,
    Variant,
    VariantFacts,
)
from edgepack.errors import BuildError
from edgepack.number_format import format_metric
from edgepack.packager.bundling.assemble import copy_variant
from edgepack.packager.gates.tolerances import Seen, derive_agreements
from edgepack.packager.progress import BuildStep, Progress
from edgepack.packager.runtime.deadline import Deadline
from edgepack.packager.stages.pipeline_file import FLOAT_PROFILE, PipelineSource
from edgepack.packager.stages.plans import VariantPlan
from edgepack.packager.stages.running_child import Ran, run_variant
from edgepack.packager.stages.stage_variants import StageBuilder
from edgepack.packager.tasks.transcript.answers import measure_with_answers
from edgepack.tasks.arrays import Outputs, Tensor
from edgepack.tasks.contract import Agreement, Measure
from edgepack.tasks.description import ModelDescription
from edgepack.tasks.details import TASK_KEPT, VALUE_LOW
from edgepack.tasks.table import task_of

_LIMIT_S = 600.0
_SIMULATOR_LIMIT_S = 60.0
"""Seconds in which samples are begun: a simulator takes seconds for each graph."""


class JudgedVariant(msgspec.Struct, frozen=True, kw_only=True):
    """A variant that holds the pipeline's budget.

    Attributes:
        plan: Its plan.
        stages: By stage the name of the stage's variant.
        parts: Variants of the stages, whose files are in the bundle's folder.
        facts: Facts for the manifest, without files.
        agreement: Agreement with the float pipeline.
        notes: Sentences for the report.
        timed_notes: Sentences with times.
    """

    plan: VariantPlan
    stages: dict[str, str]
    parts: tuple[Variant, ...]
    facts: VariantFacts
    agreement: Agreement
    notes: tuple[str, ...]
    timed_notes: tuple[str, ...]


class _Trial(msgspec.Struct, frozen=True, kw_only=True):
    parts: tuple[Variant, ...]
    ran: Ran
    got: tuple[Outputs, ...]
    agreement: Agreement

    def holds(self, keep: float) -> bool:
        """Return True if the budget holds."""
        return all(
            one.kept >= keep or one.value >= least_that_holds(one, keep)
            for one in self.agreement.measures
        )


class EndGate:
    """Judges variants of a pipeline from input to output.

    Args:
        source: The pipeline, its task settled.
        samples: Held-out samples.
        expected: The float pipeline's outputs.
        answers: Right outputs by the user; () where there are none.
        builder: Builds stages.
        folder: The bundle's folder: files of stages are copied there.
        work: Folder for tensors.
        deadline: End of the build's time.
    """

    def __init__(
        self,
        source: PipelineSource,
        samples: Sequence[Mapping[str, Tensor]],
        expected: Sequence[Outputs],
        answers: Sequence[Outputs],
        builder: StageBuilder,
        folder: Path,
        work: Path,
        deadline: Deadline,
    ) -> None:
        self._source, self._samples, self._expected = source, samples, expected
        self._answers = answers
        self._builder, self._folder, self._work = builder, folder, work
        self._deadline = deadline
        self._copied: dict[str, Variant] = {}
        facts = read_device_facts(ProviderConfig(allow_simulator=True))
        self._here = {one.name for one in facts.providers if one.available}
        self._simulators = {one.name for one in facts.providers if one.is_simulator}

    def judge(self, plan: VariantPlan, progress: Progress) -> JudgedVariant:
        """Build the stages of a variant, and judge the variant.

        Raises:
            BuildError: A stage cannot be built, or the budget does not hold even in floats.
            OutOfTimeError: The time of the build ends.
        """
        parts = tuple(self._part(stage, profile) for stage, profile in plan.profiles.items())
        trial = self._try(plan, parts, progress)
        notes = list[str]()
        while not trial.holds(plan.keep):
            trial, note = self._give_back(plan, trial, progress)
            notes.append(note)
        return self._judged(plan, trial, tuple(notes))

    def remove_unused(self, judged: Sequence[JudgedVariant]) -> None:
        """Remove the files of stages that no variant uses."""
        used = {part.folder for one in judged for part in one.parts}
        for place in self._copied.keys() - used:
            shutil.rmtree(self._folder / place)

    def _part(self, stage: str, profile: str) -> Variant:
        prepared = replace(self._builder.build(stage, profile), degraded=False)
        copied = self._copied.get(f"model/{stage}.{prepared.name}")
        if copied is None:
            copied = copy_variant(self._folder, prepared, stage)
            self._copied[copied.folder] = copied
        return copied

    def _try(self, plan: VariantPlan, parts: tuple[Variant, ...], progress: Progress) -> _Trial:
        """Run the pipeline with some parts; a provider that is not here is the CPU's stand-in."""
        progress(BuildStep(what="running the pipeline", profile=plan.name))
        run = tuple(part if part.provider in self._here else _on_cpu(part) for part in parts)
        variant = self._join(plan.name, run)
        is_slow = any(part.provider in self._simulators for part in run)
        limit_s = self._deadline.timeout_s(_SIMULATOR_LIMIT_S if is_slow else _LIMIT_S)
        ran, got = run_variant(self._folder, variant, self._samples, self._work, limit_s)
        part = self._source.part
        expected = [dict(one) for one in self._expected[: ran.count]]
        if self._answers:
            answers = self._answers[: ran.count]
            agreement = measure_with_answers(part, answers, expected, got)
        else:
            agreement = task_of(part).open(part, expected).measure([dict(one) for one in got])
        return _Trial(parts=parts, ran=ran, got=got, agreement=agreement)

    def _join(self, name: str, parts: tuple[Variant, ...]) -> Variant:
        main = next((part for part in parts if part.provider != CPU_PROVIDER), parts[0])
        return replace(main, name=name, parts=parts, wiring=self._source.wiring)

    def _give_back(
        self, plan: VariantPlan, trial: _Trial, progress: Progress
    ) -> tuple[_Trial, str]:
        """Return the best trial with a stage in floats, and a note."""
        trials = {}
        for place, part in enumerate(trial.parts):
            if part.name != FLOAT_PROFILE:
                floats = self._part(part.component, FLOAT_PROFILE)
                parts = (*trial.parts[:place], floats, *trial.parts[place + 1 :])
                trials[part.component] = self._try(plan, parts, progress)
        if not trials:
            raise BuildError(
                f"variant '{plan.name}' keeps {format_metric(trial.agreement.value)} of the float "
                f"pipeline's result with every stage in floats, at least "
                f"{format_metric(plan.keep)} is needed: {trial.agreement.words}",
                found_in=str(self._source.path),
                remedy="choose shapes of the stages that the samples fit, or a lower keep in "
                f"[pipeline], or in [gates.accuracy.{self._source.part.task}] of a profile",
            )
        stage, best = max(trials.items(), key=lambda one: one[1].agreement.value)
        lost = next(part for part in trial.parts if part.component == stage)
        note = (
            f"Stage '{stage}' is float: with its profile {lost.name} the pipeline kept "
            f"{format_metric(trial.agreement.value)}, and keeps "
            f"{format_metric(best.agreement.value)} without."
        )
        return best, note

    def _judged(self, plan: VariantPlan, trial: _Trial, notes: tuple[str, ...]) -> JudgedVariant:
        stages = {part.component: part.name for part in trial.parts}
        measures = trial.agreement.measures
        worst = min(measures, key=lambda one: one.kept)
        low = trial.agreement.low if worst.low is None else worst.low
        provider = self._join(plan.name, trial.parts).provider
        seen = Seen(errors=(), expected=tuple(self._expected[: trial.ran.count]), got=trial.got)
        described = ModelDescription(parts=(self._source.part,))
        pairs = sorted((part.name, part.facts.profile_sha256) for part in trial.parts)
        placement = trial.ran.placement
        is_here = all(part.provider in self._here for part in trial.parts)
        facts = VariantFacts(
            profile=plan.name,
            profile_sha256=hashlib.sha256(repr(pairs).encode()).hexdigest(),
            precision=" + ".join(dict.fromkeys(part.facts.precision for part in trial.parts)),
            requires=_join_requirements([part.facts.requires for part in trial.parts]),
            toolchain=_toolchain([part.facts.toolchain for part in trial.parts]),
            files=(),
            accuracy=Accuracy(
                metric=worst.metric,
                value=round(worst.value, 6),
                float_value=round(worst.scale.best, 6),
                budget=round(least_that_holds(worst, plan.keep), 6),
                sample_count=trial.ran.count,
                provider=provider if provider in self._here else CPU_PROVIDER,
                details={
                    VALUE_LOW: round(max(low, 0.0), 6),
                    TASK_KEPT: round(trial.agreement.value, 6),
                    **{name: round(one, 6) for name, one in trial.agreement.details.items()},
                },
                weak=trial.agreement.doubt,
            ),
            agreements=derive_agreements([seen], described),
            confidence=confidence_shifts([self._source.part], seen.expected, seen.got),
            tolerances={},
            placement=placement
            if placement is not None and is_here
            else Placement(provider=provider, taken=0, total=0, verified=False),
        )
        words = ", ".join(f"{stage} {name}" for stage, name in stages.items())
        return JudgedVariant(
            plan=plan,
            stages=stages,
            parts=trial.parts,
            facts=facts,
            agreement=trial.agreement,
            notes=(
                f"Stages: {words}.",
                *notes,
                *self._builder.describe_stages(stages, plan.profiles),
                *trial.agreement.notes,
            ),
            timed_notes=(
                f"A sample took {trial.ran.latency_ms:.0f} ms here from end to end"
                f"{', partly on a simulator' if provider in self._simulators else ''}.",
            ),
        )


def least_that_holds(measure: Measure, keep: float) -> float:
    """Return the least value of a measure that holds; of few answers one may always differ."""
    least = measure.scale.least_for(keep)
    if measure.value >= least or not measure.may_differ:
        return least
    return min(least, measure.scale.best - measure.may_differ)


def _on_cpu(part: Variant) -> Variant:
    return replace(
        part, provider=CPU_PROVIDER, device="cpu", session_options={}, provider_options={}
    )


def _join_requirements(each: Sequence[Requirements]) -> Requirements:
    """Return what a device needs for all stages; the stages' own requirements count too."""
    named = [set(one.arch) for one in each if one.arch]
    return Requirements(
        arch=tuple(sorted(set.intersection(*named))) if named else (),
        cpu_features=tuple(sorted({feature for one in each for feature in one.cpu_features})),
        soc=next((one.soc for one in each if one.soc), ()),
        runtime=",".join(dict.fromkeys(one.runtime for one in each if one.runtime)),
        drivers={name: wanted for one in each for name, wanted in one.drivers.items()},
    )


def _toolchain(each: Sequence[Toolchain]) -> Toolchain:
    compiled = next((one.compiled_for for one in each if one.compiled_for), "")
    return replace(each[0], compiled_for=compiled)

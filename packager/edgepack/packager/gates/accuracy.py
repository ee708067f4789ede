"""Judge how near a variant stays to the float model, and whether that is near enough.

The meaning of outputs decides their comparison (`edgepack.tasks`). A decoder is judged on texts
with answers (`texts`) or on chains of tokens (`tokens`), and the outputs of these are not judged
otherwise.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from edgepack.packager.gates.texts import DecoderReference
from edgepack.packager.gates.verdict import MetricCheck, Verdict
from edgepack.packager.profiles.schema import AccuracyBudgets, keep_of
from edgepack.packager.tasks.describe import describe_outputs
from edgepack.packager.tasks.noise import NoiseMeter
from edgepack.packager.tasks.possible import possible_of
from edgepack.packager.tasks.scores import describe_scores
from edgepack.packager.wording import toml_key
from edgepack.tasks.arrays import FEWEST_FOR_SPREAD, Outputs
from edgepack.tasks.contract import Agreement, Expected, Measure
from edgepack.tasks.cross_check import find_doubt, is_blind
from edgepack.tasks.description import IGNORED, SELECTION, ModelDescription, TaskOutputs
from edgepack.tasks.doubts.case import Case, Remedy
from edgepack.tasks.plain_error import PlainError, measure_errors
from edgepack.tasks.table import task_of

_REMEDIES: Mapping[Remedy, str] = {
    "task": "{lines} in edgepack.toml",
    "tolerance": "{tolerances} in edgepack.toml, the distance within which a result is right",
    "steps": "[inputs.{state}] kind = 'raw' and steps = ... in edgepack.toml, inferences until it "
    "begins anew",
    "series": f"{FEWEST_FOR_SPREAD} series or more with --evaluation",
    "layout": "{layout} and its layout in edgepack.toml",
    "metric": "--metric MODULE:FUNCTION with a measure of your own",
    "samples": "samples with other answers",
    "ignored": "{ignored} in edgepack.toml if nobody reads it",
}

STATE = "state"
"""Setting of outputs of a model with a state: the input that begins anew with each series."""

_SURE = 2.0
"""Times the distance to the bound of 95 % that nearly no value lies off: 3.3 standard errors."""


class Reference:
    """The float model's outputs on some samples, which candidates are judged against.

    Args:
        expected: The float model's outputs, a dict per sample.
        budgets: Required shares of each task.
        description: Meaning of the outputs; by default recognized from their values.
        tokens: Of a decoder, the float model on texts, or its continuations of the samples.
    """

    def __init__(
        self,
        expected: Sequence[Outputs],
        budgets: AccuracyBudgets,
        description: ModelDescription | None = None,
        tokens: DecoderReference | None = None,
    ) -> None:
        self.expected = tuple(expected)
        known = describe_outputs(self.expected, description)
        # Chains leave states out: errors of states show in the other outputs.
        self.description = known.without(set(known.outputs).difference(self.expected[0]))
        self._budgets = budgets
        self._tokens = tokens
        self._noise = NoiseMeter(self.expected, self.description)
        by_chains = set(tokens.outputs) if tokens else set()
        self._parts: list[tuple[TaskOutputs, Expected]] = [
            (part, task_of(part).open(part, self.expected))
            for part in self.description.parts
            if part.task != IGNORED and by_chains.isdisjoint(part.outputs)
        ]

    @cached_property
    def _remarks(self) -> tuple[str, ...]:
        said = self._tokens.remarks if self._tokens else ()
        names = [name for part, _ in self._parts for name in part.outputs]
        return (*said, *describe_scores(self.expected, self.description, names))

    def of(self, indices: Sequence[int]) -> "Reference":
        """Return the same with some of the outputs, and with the budgets of all outputs."""
        shortened = copy.copy(self)
        shortened.expected = tuple(self.expected[index] for index in indices)
        shortened._noise = NoiseMeter(shortened.expected, self.description)
        shortened._parts = [(part, opened.of(indices)) for part, opened in self._parts]
        shortened.__dict__.pop("_blind", None)
        return shortened

    def judge(self, got: Sequence[Outputs], counts: Sequence[Any] = ()) -> Verdict:
        """Compare a candidate's outputs on the same samples, in the same order.

        Args:
            got: A dict per sample.
            counts: Of a decoder, its text or chain of each sample.
        """
        agreements = [opened.measure(got) for _, opened in self._parts]
        if self._tokens and counts:
            agreements.append(self._tokens.measure(counts))
        entries = [
            self._entry(agreement, measure)
            for agreement in agreements
            if agreement.task != SELECTION
            for measure in agreement.measures
        ]
        worst = min(entries, key=lambda entry: (entry.spare, entry.metric))
        decided_by = {name: getattr(worst, name) for name in MetricCheck.__struct_fields__}
        decided_by["forgiven"] = any(entry.forgiven for entry in entries)
        decided_by["output"] = worst.output if len(self.description.outputs) > 1 else ""
        return Verdict(
            **decided_by,
            float_value=worst.best,
            passed=all(entry.passes for entry in entries),
            spare=worst.spare,
            spare_at_most=min(
                (entry.spare_at_most for entry in entries if entry.spare_at_most is not None),
                default=None,
            ),
            noise=self._noise.mean_noise(got),
            task_kept=min(entry.task_kept for entry in entries),
            costs=max((entry.cost or 0.0 for entry in entries if entry.forgiven), default=0.0),
            weak=tuple(self._doubts(agreements, got)),
            remarks=self._remarks,
            agreements=tuple(agreements),
        )

    def _doubts(self, agreements: Sequence[Agreement], got: Sequence[Outputs]) -> Iterator[str]:
        """Yield reasons for weak agreements, each with what would settle the doubt."""
        for place, (agreement, (part, _)) in enumerate(zip(agreements, self._parts, strict=False)):
            blind = self._blind[place]
            doubt = find_doubt(Case(part, agreement, self.expected, got, blind=blind))
            if doubt is not None:
                remedies = "; or ".join(_REMEDIES[one] for one in doubt.remedies)
                lines = "; ".join(self._declaration(part, name) for name in part.outputs)
                ignored, tolerances = (
                    "; ".join(f"[outputs.{toml_key(name)}] {key}" for name in part.outputs)
                    for key in ("task = 'ignored'", "tolerance = ...")
                )
                layout = f"[outputs.{toml_key(part.outputs[0])}] task = 'detections'"
                remedies = remedies.format(
                    lines=lines,
                    ignored=ignored,
                    tolerances=tolerances,
                    layout=layout,
                    state=toml_key(part.settings.get(STATE, "STATE")),
                )
                yield f"{doubt.because}. To settle it: {remedies}"
        if self._tokens:
            yield from self._tokens.doubts

    @cached_property
    def _blind(self) -> tuple[bool, ...]:
        return tuple(
            part.task != SELECTION and is_blind(opened, self.expected)
            for part, opened in self._parts
        )

    def _declaration(self, part: TaskOutputs, name: str) -> str:
        """Return the lines that declare an output, with fitting tasks, a guessed task first."""
        fit = possible_of(self.expected, name)
        wrong = part.task if part.source == "declared" else ""
        likeliest = sorted(fit, key=lambda task: task != part.task)
        tasks = [repr(task) for task in likeliest if task != wrong] or ["..."]
        listed = " or ".join(filter(None, (", ".join(tasks[:-1]), tasks[-1])))
        return f"[outputs.{toml_key(name)}] task = {listed}"

    def measure(self, got: Sequence[Outputs]) -> tuple[Agreement, ...]:
        """Return the agreement of each task in single inferences."""
        return tuple(opened.measure(got) for _, opened in self._parts)

    def errors(self, got: Sequence[Outputs]) -> tuple[PlainError, ...]:
        """Return the error of each evaluated output, regardless of its meaning."""
        names = self.description.evaluated(self.expected[0])
        return measure_errors(self.expected, got, names)

    def _entry(self, agreement: Agreement, measure: Measure) -> "_Entry":
        """Return the required value of a measure: any value where nothing must be kept."""
        keep = keep_of(self._budgets, agreement.task)
        least = measure.scale.least_for(keep)
        if keep == 0.0:
            known = (measure.value, measure.low, measure.low_as_seen)
            least = min(least, *(one for one in known if one is not None))
        return _Entry(
            task=agreement.task,
            output=measure.output,
            metric=measure.metric,
            words=measure.words,
            value=min(measure.value, measure.scale.best),
            budget=min(least, 1.0 - measure.may_differ) if measure.may_differ else least,
            asked=least,
            task_kept=measure.kept,
            best=measure.scale.best,
            low=measure.low,
            bounds=measure.bounds or _bounds(measure),
            low_as_seen=measure.low if measure.low_as_seen is None else measure.low_as_seen,
            forgiven=bool(measure.may_differ) and measure.value < least,
            cost=measure.cost,
            expected_loss=measure.expected_loss,
            expected_loss_low=measure.expected_loss_low,
            may_lose=1.0 - measure.scale.kept(least),
        )


def _bounds(measure: Measure) -> tuple[tuple[float, float], ...]:
    return () if measure.low is None else ((measure.value, measure.low),)


class _Entry(MetricCheck, frozen=True, kw_only=True):
    """Required value: a value of at least the budget; `best` is the float model's.

    `cost` and `expected_loss_low` are known of decisions (`Measure`), `task_kept` is
    `Verdict.task_kept`.
    """

    task_kept: float
    best: float = 1.0
    cost: float | None = None
    expected_loss_low: float | None = None

    @property
    def passes(self) -> bool:
        """Return True if the value holds, and other samples are not expected to lose significantly
        more than allowed (95 %).
        """
        surely_lost = self.expected_loss_low or 0.0
        return self._found_spare >= 0.0 and surely_lost <= self.may_lose + 1e-12

    @property
    def spare(self) -> float:
        """Return the remaining share of the budget's allowance; see `Verdict.spare`."""
        return min(self._found_spare, self._expected_spare)

    @property
    def spare_at_most(self) -> float | None:
        """See `Verdict.spare_at_most`."""
        if self.low is None:
            return None
        return self.spare + _SURE * (self.value - self.low) / self._allowed

    @property
    def _found_spare(self) -> float:
        """Return the remaining share on these samples."""
        return (self.value - self.budget + 1e-12) / self._allowed

    @property
    def _expected_spare(self) -> float:
        """Return the expected remaining share on other samples like these."""
        return (
            1.0
            if self.expected_loss is None
            else 1.0 - self.expected_loss / max(self.may_lose, 1e-9)
        )

    @property
    def _allowed(self) -> float:
        return max(self.best - self.budget, 1e-9)

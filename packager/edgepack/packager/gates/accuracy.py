"""How near a variant stays to the float model, and whether that is near enough.

What an output means decides by which metrics (`metrics.kinds`). Values are judged by the share of
their variance from sample to sample that is kept: cosine similarity and signal-to-noise look fine
while a speech detector loses its speech, since they count what is the same in every sample.

Vectors (embeddings, a transformer's hidden states) are compared with each other by whoever uses
them. Errors of single rows average out then, an error that a whole sample shares moves it among
its neighbours: so they must keep their *neighbourhood*, how samples differ from each other, rows
averaged. With sentence embeddings and noise of either kind, recall@1 stayed at 99.6 % with 20 % of
the rows' variance lost to noise of single rows, and fell to 98.4 % with 1 % lost to noise that a
sample's rows share, which is 4.4 % of the neighbourhood.

What counts of a detector is what it finds, of a reader what it reads, of a decoder which tokens it
chooses (`tasks`). That is compared with the float model's, and the outputs that tell it are not
judged otherwise.
"""

import copy
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from edgepack.packager.gates.task_kept import task_kept
from edgepack.packager.gates.tasks import OutputReference, open_reference, task_of
from edgepack.packager.gates.tokens import TokenReference
from edgepack.packager.gates.verdict import Judged, Verdict
from edgepack.packager.metrics.agreement import Agreement
from edgepack.packager.metrics.distance import OutputDistance, measure_distance
from edgepack.packager.metrics.kinds import ASKED, KINDS, METRICS, MetricName, OutputKind
from edgepack.packager.metrics.output_kinds import describe_scores, kinds_of_outputs, with_one_miss
from edgepack.packager.metrics.parts import Part, find_parts
from edgepack.packager.profiles.schema import AccuracyGate
from edgepack.packager.tensors.heads import Head
from edgepack.packager.tensors.meanings import NOTHING_KNOWN, Meaning
from edgepack.tasks.arrays import Bools, Outputs, Tensor
from edgepack.tasks.tokens.agreement import ChainCounts, measure_tokens
from edgepack.tasks.values.between_samples import variances_between

_WHOLE_METRICS = ("cosine", "sqnr_db")
"""Metrics that a profile asks for by name and that are taken of whole outputs."""

_LEAST_LOSS = 0.002
"""Of right answers: what is expected to be lost cannot be told nearer from few samples."""

_SURELY_TOO_MUCH = 2.0
"""Times what may be lost. In 5,650 draws of 30 samples by which variants passed that lose less than
1 %, so much was expected of none that loses up to .7 %, and in 4 draws of others."""

_SURE = 2.0
"""Times the distance to the bound of 95 % that nearly no value lies off: 3.3 standard errors."""


class Reference:
    """The float model's outputs on some samples, which candidates are judged against.

    Args:
        expected: The float model's outputs, one dict a sample.
        gate: The budgets.
        meanings: What outputs mean, of those where it is known.
        head: The outputs that tell what the model is for, settled; None where that is not known.
        tokens: Of a decoder, what the float model says after the samples.
    """

    def __init__(
        self,
        expected: Sequence[Outputs],
        gate: AccuracyGate,
        meanings: Mapping[str, Meaning] = NOTHING_KNOWN,
        head: Head | None = None,
        tokens: TokenReference | None = None,
    ) -> None:
        self.expected = tuple(expected)
        self._gate = gate
        self._count = len(self.expected)
        self._meanings = meanings
        self.kinds = kinds_of_outputs(self.expected, gate, meanings)
        self._variances: dict[str, list[float]] = {}
        self._parts = () if gate.metric in _WHOLE_METRICS else find_parts(self.expected, self.kinds)
        self._told: OutputReference | None = None
        if head is not None and gate.metric == "auto":
            self._told = open_reference(head, self.expected)
        self._tokens = tokens
        self._task = tokens or self._told

    @cached_property
    def _remarks(self) -> tuple[str, ...]:
        told = self._task.outputs if self._task else ()
        kinds = {name: kind for name, kind in self.kinds.items() if name not in told}
        said = self._tokens.remarks if self._tokens else ()
        return (*said, *describe_scores(self.expected, kinds, self._gate, self._meanings))

    def of(self, indices: Sequence[int]) -> "Reference":
        """The same with some of the outputs only, and with the budgets of all of them."""
        shortened = copy.copy(self)
        shortened.expected = tuple(self.expected[index] for index in indices)
        shortened._variances = {}
        if self._told:
            shortened._task = shortened._told = self._told.of(indices)
        return shortened

    def judge(self, got: Sequence[Outputs], chains: Sequence[ChainCounts] = ()) -> Verdict:
        """Compares a candidate's outputs on the same samples, in the same order.

        Args:
            got: One dict a sample.
            chains: Of a decoder, how it went on after each.
        """
        distances = self.distances(got)
        of_parts = [self._distance_of(part, got) for part in self._parts]
        found = {part.output for part in self._parts if part.is_found}
        agreement: Agreement | None = measure_tokens(chains) if chains else None
        if self._told:
            agreement = self._told.measure(got)
        told = self._task.outputs if self._task and agreement else ()
        entries = [
            entry
            for distance in distances
            if distance.name not in found and distance.name not in told
            for entry in self._judge_output(distance)
        ]
        entries += [
            self._judge_by("explained_variance", distance, output="")
            for part, distance in zip(self._parts, of_parts, strict=True)
            if part.output not in told
        ]
        if agreement is not None:
            entries.append(self._judge_task(agreement))
        divided = {part.output for part in self._parts}
        apart = [
            *of_parts,
            *(
                entry
                for entry in distances
                if entry.name not in divided and entry.kind is not OutputKind.SELECTED
            ),
        ]
        worst = min(entries, key=lambda entry: (entry.spare, entry.metric))
        decided_by = {name: getattr(worst, name) for name in Judged.__struct_fields__}
        decided_by["forgiven"] = any(entry.forgiven for entry in entries)
        decided_by["output"] = worst.output if len(self.kinds) > 1 else ""
        return Verdict(
            **decided_by,
            float_value=worst.best,
            passed=all(entry.passes for entry in entries),
            spare=worst.spare,
            spare_at_most=min(
                (entry.spare_at_most for entry in entries if entry.spare_at_most is not None),
                default=None,
            ),
            noise=float(np.mean([min(distance.nrmse, 1e6) for distance in apart])),
            distances=distances,
            task_kept=min(entry.task_kept for entry in entries),
            costs=max((entry.cost or 0.0 for entry in entries if entry.forgiven), default=0.0),
            remarks=self._remarks,
            agreement=agreement,
        )

    def distances(self, got: Sequence[Outputs]) -> tuple[OutputDistance, ...]:
        """Each output's distance to the float model's."""
        return tuple(
            self._measure(
                name,
                kind,
                [outputs[name] for outputs in self.expected],
                [outputs[name] for outputs in got],
            )
            for name, kind in self.kinds.items()
        )

    def _measure(
        self,
        name: str,
        kind: OutputKind,
        expected: list[Tensor],
        got: list[Tensor],
        read: Sequence[Bools] | None = None,
    ) -> OutputDistance:
        """As `measure_distance`; what the float model alone tells is found out once."""
        if name not in self._variances:
            self._variances[name] = variances_between(expected, read)
        return measure_distance(name, kind, expected, got, read, self._variances[name])

    def _judge_output(self, distance: OutputDistance) -> list["_Entry"]:
        """What must hold of one output."""
        kind = KINDS[distance.kind]
        wanted = kind.metrics
        if kind.are_numbers:
            wanted = ASKED.get(self._gate.metric, wanted)
        known = [name for name in wanted if getattr(distance, METRICS[name].value) is not None]
        if wanted and not known:
            known = ["explained_variance"]
        return [self._judge_by(name, distance, output=distance.name) for name in known]

    def _judge_by(self, name: MetricName, distance: OutputDistance, *, output: str) -> "_Entry":
        """What must hold of one output by one metric, which names the output itself if need be."""
        metric = METRICS[name]
        value, least = getattr(distance, metric.value), getattr(self._gate, metric.budget)
        cost = distance.cost if metric.may_miss_one else None
        expected = distance.expected_cost if metric.may_miss_one else None
        return _Entry(
            output=output,
            metric=name if output else f"{name} ({distance.name})",
            value=min(value, metric.best),
            budget=with_one_miss(least, self._count) if metric.may_miss_one else least,
            asked=least,
            task_kept=task_kept(name, value) if cost is None else 1.0 - max(cost, expected or 0.0),
            best=metric.best,
            low=getattr(distance, metric.low) if metric.low else None,
            forgiven=metric.may_miss_one and value < least,
            cost=cost,
            expected_loss=expected,
            may_lose=max(1.0 - task_kept(name, least), _LEAST_LOSS),
        )

    def _judge_task(self, agreement: Agreement) -> "_Entry":
        """What must hold of what the model is for; of little one thing may always differ."""
        name = task_of(agreement).metric
        least = getattr(self._gate, METRICS[name].budget)
        return _Entry(
            metric=name,
            value=agreement.value,
            budget=self._task.budget(least) if self._task else least,
            asked=least,
            task_kept=task_kept(name, agreement.value),
            low=agreement.low,
            forgiven=agreement.value < least,
        )

    def _distance_of(self, part: Part, got: Sequence[Outputs]) -> OutputDistance:
        return self._measure(
            part.words,
            OutputKind.VALUES,
            [part.of(outputs) for outputs in self.expected],
            [part.of(outputs) for outputs in got],
            part.read_in(self.expected),
        )


class _Entry(Judged, frozen=True, kw_only=True):
    """One thing that must hold: a value of at least the budget; `best` is the float model's.

    `cost` is known of decisions (`OutputDistance.cost`), `task_kept` is `Verdict.task_kept`.
    """

    task_kept: float
    best: float = 1.0
    cost: float | None = None

    @property
    def passes(self) -> bool:
        """Whether it holds, and nothing says that it surely loses more on other samples."""
        return self._found_spare >= 0.0 and self._expected_spare >= 1.0 - _SURELY_TOO_MUCH

    @property
    def spare(self) -> float:
        """How much of what the budget allows is left; see `Verdict.spare`."""
        return min(self._found_spare, self._expected_spare)

    @property
    def spare_at_most(self) -> float | None:
        """See `Verdict.spare_at_most`."""
        if self.low is None:
            return None
        return self.spare + _SURE * (self.value - self.low) / self._allowed

    @property
    def _found_spare(self) -> float:
        """By what these samples show."""
        return (self.value - self.budget + 1e-12) / self._allowed

    @property
    def _expected_spare(self) -> float:
        """By what other samples like these are expected to lose."""
        return 1.0 if self.expected_loss is None else 1.0 - self.expected_loss / self.may_lose

    @property
    def _allowed(self) -> float:
        return max(self.best - self.budget, 1e-9)

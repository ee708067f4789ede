"""How near a variant stays to the float model, and whether that is near enough.

What an output means decides how it is judged (`OutputKind`), and the float model's own outputs
tell: a distribution (not negative, sums to 1 over the last axis) or a row of scores is a
*decision*, judged by whether the same index wins; anything else is *values*, judged by the share
of their variance from sample to sample that is kept (cosine similarity and signal-to-noise look
fine while a speech detector loses its speech: they count what is the same in every sample). Where
a sample holds many decisions (the characters of a text line, the classes of a picture's points),
each of them counts. Integers are decisions that the model has taken already.

Agreement tells something only where decisions differ. Where a model that always gives the commonest
one would pass, a row of scores is judged as values: it may well be two quantities of unlike size.
Of a distribution the probabilities are judged then: somebody holds them against a threshold.
And only where they are clear: rows in which no winner stands out are quantities side by side, or
vectors, and values too. Several rows of values with a clear winner in nearly each may be what a
text recognizer says of characters: they must keep both, their variance and their winners.

Vectors (embeddings, a transformer's hidden states) are compared with each other by whoever uses
them. Errors of single rows average out then, an error that a whole sample shares moves it among
its neighbours. So values that hold vectors must also keep their *neighbourhood*: how samples differ
from each other, rows averaged. With sentence embeddings and noise of either kind, recall@1 stayed
at 99.6 % with 20 % of the rows' variance lost to noise of single rows, and fell to 98.4 % with 1 %
lost to noise that a sample's rows share, which is 4.4 % of the neighbourhood.
"""

import copy
from collections.abc import Mapping, Sequence
from functools import cached_property

import msgspec
import numpy as np
import numpy.typing as npt

from edgepack.packager.gates.verdict import Verdict
from edgepack.packager.metrics.between_samples import variances_between
from edgepack.packager.metrics.distance import OutputDistance, OutputKind, measure_distance
from edgepack.packager.metrics.output_kinds import describe_scores, kinds_of_outputs, with_one_miss
from edgepack.packager.metrics.parts import Part, find_parts
from edgepack.packager.profiles.schema import AccuracyGate
from edgepack.packager.runtime.model_run import Outputs
from edgepack.packager.tensors.meanings import NOTHING_KNOWN, Meaning
from edgepack.packager.tensors.sequence import Tensor

_WHOLE_METRICS = ("cosine", "sqnr_db")
"""Metrics that a profile asks for by name and that are taken of whole outputs."""

_SURE = 2.0
"""Times the distance to the bound of 95 % that nearly no value lies off: 3.3 standard errors."""

_FLOAT_SQNR_DB = 100.0
"""What float rounding itself leaves, or better: beyond it nothing is gained."""


class Reference:
    """The float model's outputs on some samples, which candidates are judged against.

    Args:
        expected: The float model's outputs, one dict a sample.
        gate: The budgets.
        meanings: What outputs mean, of those where it is known.
    """

    def __init__(
        self,
        expected: Sequence[Outputs],
        gate: AccuracyGate,
        meanings: Mapping[str, Meaning] = NOTHING_KNOWN,
    ) -> None:
        self.expected = tuple(expected)
        self._gate = gate
        self._count = len(self.expected)
        self._meanings = meanings
        self.kinds = kinds_of_outputs(self.expected, gate, meanings)
        self._variances: dict[str, list[float]] = {}
        self._parts = () if gate.metric in _WHOLE_METRICS else find_parts(self.expected, self.kinds)

    @cached_property
    def _remarks(self) -> tuple[str, ...]:
        return describe_scores(self.expected, self.kinds, self._gate, self._meanings)

    def of(self, indices: Sequence[int]) -> "Reference":
        """The same with some of the outputs only, and with the budgets of all of them."""
        shortened = copy.copy(self)
        shortened.expected = tuple(self.expected[index] for index in indices)
        shortened._variances = {}
        return shortened

    def judge(self, got: Sequence[Outputs]) -> Verdict:
        """Compares a candidate's outputs on the same samples, in the same order."""
        distances = self.distances(got)
        of_parts = [self._distance_of(part, got) for part in self._parts]
        found = {part.output for part in self._parts if part.is_found}
        entries = [
            entry
            for distance in distances
            if distance.name not in found
            for entry in self._judge_output(distance)
        ]
        entries += [self._judge_part(distance) for distance in of_parts]
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
        return Verdict(
            metric=worst.metric,
            value=worst.value,
            float_value=worst.best,
            budget=worst.budget,
            passed=all(entry.spare >= 0.0 for entry in entries),
            spare=worst.spare,
            spare_at_most=min(
                (entry.spare_at_most for entry in entries if entry.spare_at_most is not None),
                default=None,
            ),
            noise=float(np.mean([min(distance.nrmse, 1e6) for distance in apart])),
            distances=distances,
            low=worst.low,
            forgiven=any(entry.forgiven for entry in entries),
            output=worst.output if len(self.kinds) > 1 else "",
            remarks=self._remarks,
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
        read: Sequence[npt.NDArray[np.bool_]] | None = None,
    ) -> OutputDistance:
        """As `measure_distance`; what the float model alone tells is found out once."""
        if name not in self._variances:
            self._variances[name] = variances_between(expected, read)
        return measure_distance(name, kind, expected, got, read, self._variances[name])

    def _judge_output(self, distance: OutputDistance) -> list["_Entry"]:
        """What must hold of one output."""
        gate = self._gate
        if distance.kind is OutputKind.SELECTED:
            return []  # what it is computed from is judged
        if distance.kind is OutputKind.WINNERS:
            return [*self._judge_values(distance), self._judge_rows(distance)]
        if distance.kind.is_values:
            return self._judge_values(distance)
        if distance.kind is OutputKind.SEQUENCE or self._holds_many_integers(distance):
            return [self._judge_rows(distance)]
        return [
            _Entry(
                output=distance.name,
                metric="top1_agreement",
                value=distance.agreement,
                budget=with_one_miss(gate.top1_agreement_min, self._count),
                low=distance.agreement_low,
                forgiven=distance.agreement < gate.top1_agreement_min,
            )
        ]

    def _judge_rows(self, distance: OutputDistance) -> "_Entry":
        return _Entry(
            output=distance.name,
            metric="sequence_agreement",
            value=distance.row_agreement or 0.0,
            budget=self._gate.sequence_agreement_min,
            low=distance.row_agreement_low,
        )

    def _holds_many_integers(self, distance: OutputDistance) -> bool:
        return distance.kind is OutputKind.EXACT and any(
            outputs[distance.name].size > 1 for outputs in self.expected
        )

    def _distance_of(self, part: Part, got: Sequence[Outputs]) -> OutputDistance:
        return self._measure(
            part.words,
            OutputKind.VALUES,
            [part.of(outputs[part.output]) for outputs in self.expected],
            [part.of(outputs[part.output]) for outputs in got],
            part.read_in(self.expected),
        )

    def _judge_part(self, distance: OutputDistance) -> "_Entry":
        """What must hold of some channels of an output, whatever the others' size."""
        return _Entry(
            metric=f"explained_variance ({distance.name})",
            value=distance.explained_variance,
            budget=self._gate.explained_variance_min,
            low=distance.explained_variance_low,
        )

    def _judge_values(self, distance: OutputDistance) -> list["_Entry"]:
        gate = self._gate
        if gate.metric == "cosine":
            return [
                _Entry(
                    output=distance.name,
                    metric="cosine",
                    value=distance.cosine,
                    budget=gate.cosine_min,
                )
            ]
        if gate.metric == "sqnr_db":
            value = min(distance.sqnr_db, _FLOAT_SQNR_DB)
            return [
                _Entry(
                    output=distance.name,
                    metric="sqnr_db",
                    value=value,
                    budget=gate.sqnr_db_min,
                    best=_FLOAT_SQNR_DB,
                )
            ]
        entries = []
        metric = self._metric_of(distance)
        if metric != "neighbourhood" or distance.neighbourhood is None:
            entries.append(
                _Entry(
                    output=distance.name,
                    metric="explained_variance",
                    value=distance.explained_variance,
                    budget=gate.explained_variance_min,
                    low=distance.explained_variance_low,
                )
            )
        if metric != "explained_variance" and distance.neighbourhood is not None:
            entries.append(
                _Entry(
                    output=distance.name,
                    metric="neighbourhood",
                    value=distance.neighbourhood,
                    budget=gate.neighbourhood_min,
                    low=distance.neighbourhood_low,
                )
            )
        return entries

    def _metric_of(self, distance: OutputDistance) -> str:
        """Which metric of values holds for an output, by its meaning if not by the profile."""
        if self._gate.metric == "auto" and self._meanings.get(distance.name) is Meaning.VALUES:
            return "explained_variance"
        if distance.kind is OutputKind.PROBABILITIES:
            return "explained_variance"
        if self._gate.metric == "auto" and distance.kind is OutputKind.EMBEDDING:
            return "neighbourhood"
        return self._gate.metric


class _Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that must hold: a value of at least the budget; `best` is the float model's.

    It is `forgiven` where it holds only because one of few samples may always differ. `output` is
    empty where `metric` names it.
    """

    metric: str
    value: float
    budget: float
    best: float = 1.0
    low: float | None = None
    forgiven: bool = False
    output: str = ""

    @property
    def spare(self) -> float:
        """How much of what the budget allows is left; see `Verdict.spare`."""
        return (self.value - self.budget + 1e-12) / self._allowed

    @property
    def spare_at_most(self) -> float | None:
        """See `Verdict.spare_at_most`."""
        if self.low is None:
            return None
        return self.spare + _SURE * (self.value - self.low) / self._allowed

    @property
    def _allowed(self) -> float:
        return max(self.best - self.budget, 1e-9)

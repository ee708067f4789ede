"""Tolerances of a device's golden outputs, derived from measurements of the build.

A probe must tell a broken model from another provider's rounding. So the limits start from the
*worst* held-out sample (the golden samples are included), with a margin for a provider that rounds
differently: twice the error plus a little. Outputs that are unrelated to the expected outputs have
an nrmse of 1 or more; the cap stays clear of it. The limit of the cosine is that of the largest
angle that such an error can make.

The share of a task is measured on the golden samples themselves, with the code of a device: eight
samples that are far from each other lose another share than all held-out samples. A slow device
computes the first samples only, so each number of samples is measured.
"""

import math
from collections.abc import Collection, Iterator, Sequence

import msgspec
from msgspec.structs import replace

from edgepack.agent.runtime.probing import LEAST_SAMPLES
from edgepack.bundle.manifest import GoldenAgreement, GoldenTolerance
from edgepack.tasks.arrays import Outputs
from edgepack.tasks.description import (
    IGNORED,
    NOT_EVALUATED,
    SELECTION,
    ModelDescription,
    TaskOutputs,
)
from edgepack.tasks.detections.layouts import suppressed
from edgepack.tasks.plain_error import PlainError, measure_errors
from edgepack.tasks.table import task_of

TIMES = 2.0
NRMSE_ROOM = 0.02
"""A provider's own rounding, as a share of an output's size. Of four models on Qualcomm's
simulator, at 8 and 16 bits, none was off more there than on the CPU's worst sample; a detector that
the simulator computes wrongly was, by 8 to 14 %."""

_LOOSEST_NRMSE = 0.9

_TOKENS = "tokens"

_OVERLAP_KEPT = 0.5
"""Of a selection: half of the rows that both models share in the worst sample. Where that is none,
as of a count that is off by one, the device looks at the outputs beside it."""


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of a variant in a single place (CPU, simulator).

    Attributes:
        errors: Of each output, on all held-out samples that ran there.
        expected: Outputs of the float model on the golden samples that ran there, in a device's
            order.
        got: Outputs of the variant on the same samples.
    """

    errors: tuple[PlainError, ...]
    expected: tuple[Outputs, ...]
    got: tuple[Outputs, ...]

    def prefixes(self) -> Iterator[tuple[Sequence[Outputs], Sequence[Outputs]]]:
        """Yield expected and computed outputs of the first golden samples, for each number of
        samples that a device may compute.
        """
        count = len(self.expected)
        for end in range(min(LEAST_SAMPLES, count), count + 1):
            if end:
                yield self.expected[:end], self.got[:end]


def derive_tolerances(
    seen: Sequence[Seen], description: ModelDescription, watched: Collection[str] = ()
) -> dict[str, GoldenTolerance]:
    """Return limits by output.

    Args:
        seen: Measurements in each place where the variant ran.
        description: Meaning of the outputs; selections have no limits, since their rows change
            places.
        watched: Outputs that a device's model does not have.

    Returns:
        A tolerance for every other output.
    """
    by_output: dict[str, list[PlainError]] = {}
    unordered = {*watched, *(suppressed(description) if watched else ())}
    for place in seen:
        for error in place.errors:
            if error.output in unordered or description.task_of(error.output) in NOT_EVALUATED:
                continue
            golden = [measure_errors(*pair, [error.output])[0] for pair in place.prefixes()]
            by_output.setdefault(error.output, []).extend((error, *golden))
    return {name: _derive(errors) for name, errors in sorted(by_output.items())}


def derive_agreements(
    seen: Sequence[Seen], description: ModelDescription, watched: Collection[str] = ()
) -> tuple[GoldenAgreement, ...]:
    """Return the required shares of tasks on a device, for the outputs of a device's model.

    Args:
        seen, description, watched: See `derive_tolerances`.
    """
    pairs = [(*pair, place.expected) for place in seen for pair in place.prefixes()]
    parts = [
        replace(part, class_names=())
        for part in description.parts
        if part.task != IGNORED and not set(part.outputs) & set(watched)
        if all(set(part.outputs) <= set(place.expected[0]) for place in seen if place.expected)
    ]
    return tuple(
        GoldenAgreement(part=part, keep=min(_least(part, *pair) for pair in pairs))
        for part in parts
        if pairs
    )


def _least(
    part: TaskOutputs,
    expected: Sequence[Outputs],
    got: Sequence[Outputs],
    golden: Sequence[Outputs],
) -> float:
    """Return the share of a task that a device must keep where the build had these outputs.

    A device may lose a sample more, as a share of all golden samples; or a token more, as a share
    of all places of golden texts.

    Args:
        part: The outputs.
        expected, got: The float model's outputs and the variant's, a dict per sample.
        golden: The float model's outputs on all golden samples.
    """
    found = task_of(part).open(part, expected).measure(got)
    if part.task == SELECTION:
        return round(_OVERLAP_KEPT * (1.0 - max(found.losses)), 6)
    count = len(golden)
    if part.task == _TOKENS:
        name = part.outputs[0]
        count = sum(one[name].size // max(one[name].shape[-1], 1) for one in golden)
    return round(max(0.0, found.value - 1.0 / count), 6)


def _derive(errors: Sequence[PlainError]) -> GoldenTolerance:
    nrmse = max(error.worst_nrmse for error in errors)
    most = min(_LOOSEST_NRMSE, TIMES * nrmse + NRMSE_ROOM)
    return GoldenTolerance(
        cosine_min=math.floor(1e6 * math.sqrt(max(1.0 - most**2, 0.0))) / 1e6,
        nrmse_max=round(most, 6),
    )

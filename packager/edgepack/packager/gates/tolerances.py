"""Tolerances of a device's golden outputs, derived from measurements of the build.

A probe must tell a broken model from another provider's rounding. So the limits start from the
*worst* held-out sample (the golden samples are included), with a margin for a provider that rounds
differently: twice the error plus a little. An error twice as large takes four times as much from
the cosine, which falls with its square. A device computes the cosine of all golden samples
together: for outputs with a single value, each sample's cosine is 1 for any value. Outputs that are
unrelated to the expected outputs have a cosine near 0 and an nrmse of 1 or more; the caps stay
clear of both.
"""

from collections.abc import Collection, Sequence

import msgspec
from msgspec.structs import replace

from edgepack.bundle.manifest import GoldenAgreement, GoldenTolerance
from edgepack.tasks.contract import Agreement
from edgepack.tasks.description import IGNORED, NOT_EVALUATED, SELECTION, ModelDescription
from edgepack.tasks.plain_error import PlainError

_TIMES = 2.0
_LOOSEST_COSINE = 0.5
_LOOSEST_NRMSE = 0.9
_COSINE_ROOM = 0.002
_NRMSE_ROOM = 0.02
_TASK_ROOM = 0.125
"""Share of a task that may be lost on golden samples beyond what held-out samples lost: of eight
decisions over which the float model hesitated, two."""

_OVERLAP_KEPT = 0.5
"""Of a selection: half of the rows that both models share in the worst sample. Where that is none,
as of a count that is off by one, the device looks at the outputs beside it."""


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of a variant in a single place (CPU, simulator).

    Attributes:
        errors: Of each output.
        agreements: By task.
    """

    errors: tuple[PlainError, ...]
    agreements: tuple[Agreement, ...]


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
    for place in seen:
        for error in place.errors:
            by_output.setdefault(error.output, []).append(error)
    return {
        name: _derive(errors)
        for name, errors in sorted(by_output.items())
        if name not in watched and description.task_of(name) not in NOT_EVALUATED
    }


def derive_agreements(
    seen: Sequence[Seen], description: ModelDescription, watched: Collection[str] = ()
) -> tuple[GoldenAgreement, ...]:
    """Return the required shares of tasks on a device, for the outputs of a device's model.

    Args:
        seen, description, watched: See `derive_tolerances`.
    """
    parts = [part for part in description.parts if part.task != IGNORED]
    kept: dict[int, float] = {}
    for place in seen:
        for number, agreement in enumerate(place.agreements):
            is_selection = agreement.task == SELECTION
            value = 1.0 - max(agreement.losses) if is_selection else agreement.value
            kept[number] = min(value, kept.get(number, 1.0))
    return tuple(
        GoldenAgreement(part=replace(part, class_names=()), keep=_least(part.task, kept[number]))
        for number, part in enumerate(parts)
        if number in kept and not set(part.outputs) & set(watched)
    )


def _least(task: str, kept: float) -> float:
    if task == SELECTION:
        return round(_OVERLAP_KEPT * kept, 6)
    return round(max(0.0, kept - _TASK_ROOM), 6)


def _derive(errors: Sequence[PlainError]) -> GoldenTolerance:
    cosine = min(min(error.worst_cosine, error.cosine) for error in errors)
    nrmse = max(error.worst_nrmse for error in errors)
    return GoldenTolerance(
        cosine_min=round(max(_LOOSEST_COSINE, 1.0 - _TIMES**2 * (1.0 - cosine) - _COSINE_ROOM), 6),
        nrmse_max=round(min(_LOOSEST_NRMSE, _TIMES * nrmse + _NRMSE_ROOM), 6),
    )

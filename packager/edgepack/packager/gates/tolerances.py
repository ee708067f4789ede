"""How far a device's golden outputs may be off, derived from what was measured here.

A probe must tell a broken model from another provider's rounding. So the limits start from the
*worst* held-out sample (the golden ones are among them), with room for a provider that rounds
differently: twice the error plus a little. An error twice as large takes four times as much from
the cosine, which falls with its square. A device takes the cosine of all golden samples together:
of outputs with one value, each sample's own is 1 whatever the value. Outputs that have nothing to
do with the expected ones have a cosine near 0 and an nrmse of 1 or more; the caps stay clear of
both.
"""

from collections.abc import Collection, Sequence

import msgspec

from edgepack.bundle.manifest import GoldenTolerance
from edgepack.tasks.contract import Agreement
from edgepack.tasks.description import SELECTION
from edgepack.tasks.plain_error import PlainError

_TIMES = 2.0
_LOOSEST_COSINE = 0.5
_LOOSEST_NRMSE = 0.9
_COSINE_ROOM = 0.002
_NRMSE_ROOM = 0.02
_ROWS_ROOM = 0.25
"""A quarter of the golden decisions may differ: with eight samples, two."""

_OVERLAP_KEPT = 0.5
"""Of a selection: half of the rows that both models share in the worst sample. Where that is none,
as of a count that is off by one, the device looks at the outputs beside it."""

_ANY_ERROR = 1e30
"""How far apart values are says nothing where rows change places."""


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured of a variant in one place (CPU, simulator).

    Attributes:
        errors: Of each output.
        agreements: By task.
    """

    errors: tuple[PlainError, ...]
    agreements: tuple[Agreement, ...]


def derive_tolerances(
    seen: Sequence[Seen], watched: Collection[str] = ()
) -> dict[str, GoldenTolerance]:
    """Return limits by output.

    Args:
        seen: What was measured in each place where the variant ran.
        watched: Outputs that a device's model does not have.

    Returns:
        A tolerance for every other output.
    """
    by_output: dict[str, list[PlainError]] = {}
    for place in seen:
        for error in place.errors:
            by_output.setdefault(error.output, []).append(error)
    tolerances = {name: _derive(name, errors, seen) for name, errors in by_output.items()}
    for place in seen:
        for agreement in place.agreements:
            if agreement.task == SELECTION:
                least = round(_OVERLAP_KEPT * (1.0 - max(agreement.losses)), 6)
                name = agreement.measures[0].output
                known = tolerances.get(name)
                if known is not None and isinstance(known.overlap_min, float):
                    least = min(least, known.overlap_min)
                tolerances[name] = GoldenTolerance(
                    cosine_min=-1.0, nrmse_max=_ANY_ERROR, overlap_min=least
                )
    return {name: tolerances[name] for name in sorted(tolerances) if name not in watched}


def _derive(name: str, errors: Sequence[PlainError], seen: Sequence[Seen]) -> GoldenTolerance:
    cosine = min(min(error.worst_cosine, error.cosine) for error in errors)
    nrmse = max(error.worst_nrmse for error in errors)
    rows = [
        measure.value
        for place in seen
        for agreement in place.agreements
        for measure in agreement.measures
        if agreement.task == "classification" and measure.output == name
    ]
    return GoldenTolerance(
        cosine_min=round(max(_LOOSEST_COSINE, 1.0 - _TIMES**2 * (1.0 - cosine) - _COSINE_ROOM), 6),
        nrmse_max=round(min(_LOOSEST_NRMSE, _TIMES * nrmse + _NRMSE_ROOM), 6),
        top1_agreement_min=round(max(0.0, min(rows) - _ROWS_ROOM), 6) if rows else None,
    )

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

from edgepack.bundle.manifest import GoldenTolerance
from edgepack.packager.metrics.distance import OutputDistance
from edgepack.packager.metrics.kinds import OutputKind

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


def derive_tolerances(
    measured: Sequence[Sequence[OutputDistance]], watched: Collection[str] = ()
) -> dict[str, GoldenTolerance]:
    """Limits by output.

    Args:
        measured: One list of distances for each place where the variant ran (CPU, simulator).
        watched: Outputs that a device's model does not have.

    Returns:
        A tolerance for every other output.
    """
    by_output: dict[str, list[OutputDistance]] = {}
    for distances in measured:
        for distance in distances:
            by_output.setdefault(distance.name, []).append(distance)
    return {
        name: _derive(distances)
        for name, distances in sorted(by_output.items())
        if name not in watched
    }


def _derive(distances: Sequence[OutputDistance]) -> GoldenTolerance:
    if distances[0].kind is OutputKind.SELECTED:
        least = round(_OVERLAP_KEPT * min(entry.worst_overlap or 0.0 for entry in distances), 6)
        return GoldenTolerance(cosine_min=-1.0, nrmse_max=_ANY_ERROR, overlap_min=least)
    cosine = min(min(distance.worst_cosine, distance.cosine) for distance in distances)
    nrmse = max(distance.worst_nrmse for distance in distances)
    rows = [
        distance.row_agreement
        for distance in distances
        if distance.kind in (OutputKind.DECISION, OutputKind.SEQUENCE)
        and distance.row_agreement is not None
    ]
    return GoldenTolerance(
        cosine_min=round(max(_LOOSEST_COSINE, 1.0 - _TIMES**2 * (1.0 - cosine) - _COSINE_ROOM), 6),
        nrmse_max=round(min(_LOOSEST_NRMSE, _TIMES * nrmse + _NRMSE_ROOM), 6),
        top1_agreement_min=round(max(0.0, min(rows) - _ROWS_ROOM), 6) if rows else None,
    )

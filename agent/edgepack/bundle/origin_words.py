"""A bundle's provenance and bill of materials as text for a terminal."""

from collections.abc import Iterator

from edgepack.bundle.provenance import PROFILE_ROLE, BillOfMaterials, Origin, Provenance
from edgepack.text import printable

_SHORT = 12
_NOT_SAID = "not said"


def describe_origin(origin: Origin) -> Iterator[str]:
    """Yield lines for a terminal; none of a bundle that has neither document."""
    if origin.provenance is not None:
        yield from map(printable, _provenance(origin.provenance))
    if origin.bill is not None:
        yield from map(printable, _bill(origin.bill))


def _provenance(provenance: Provenance) -> Iterator[str]:
    yield f"built by:      {provenance.builder_id}"
    made_of = ", ".join(
        f"{each.name} {each.sha256[:_SHORT]}"
        for each in provenance.dependencies
        if each.role != PROFILE_ROLE
    )
    yield f"built from:    {made_of}"


def _bill(bill: BillOfMaterials) -> Iterator[str]:
    yield f"license:       {bill.license or _NOT_SAID}"
    yield f"producer:      {bill.producer or _NOT_SAID}"
    yield f"data sets:     {', '.join(bill.datasets) or _NOT_SAID}"

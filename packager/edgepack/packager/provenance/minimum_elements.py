"""The minimum elements of an SBOM for AI, and where each stands in ours.

From "Software Bill of Materials for AI: Minimum Elements" of the G7 Cybersecurity Working Group,
published on 2026-05-12: 50 elements in seven clusters. An element of several components (a model's
license, say) counts if each of these components has a value.
"""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from typing import Any, NamedTuple

_FOLDER = "edgepack.packager.provenance"
_FILE = "minimum_elements.toml"

Bill = Mapping[str, Any]


class MinimumElement(NamedTuple):
    """Minimum element.

    Attributes:
        cluster: The G7's cluster.
        name: The G7's name.
        place: Place in the bill of materials, for people.
        of: Components that should have the element, see `_PARTS`.
        path: Path in the bill: keys, and in brackets the name or type of a list's entry.
    """

    cluster: str
    name: str
    place: str
    of: str
    path: str

    def is_in(self, bill: Bill) -> bool:
        """Return True if all required components of a bill have the element."""
        found = [_value(part, self.path) for part in _PARTS[self.of](bill)]
        return bool(found) and all(found)


def count_elements(bill: Bill) -> tuple[int, tuple[str, ...]]:
    """Return the number of a bill's elements, and the names of missing elements."""
    lacking = tuple(each.name for each in MINIMUM_ELEMENTS if not each.is_in(bill))
    return len(MINIMUM_ELEMENTS) - len(lacking), lacking


def _value(part: Any, path: str) -> Any:
    for step in path.split("."):
        key, _, wanted = step.rstrip("]").partition("[")
        part = part.get(key) if isinstance(part, Mapping) else None
        if wanted:
            part = any(wanted in (each.get("name"), each.get("type")) for each in part or ())
    return part


def _of_type(kind: str) -> Callable[[Bill], list[Bill]]:
    return lambda bill: [each for each in bill.get("components", ()) if each["type"] == kind]


def _referred(start: str) -> Callable[[Bill], list[Bill]]:
    return lambda bill: [
        each
        for each in bill.get("components", ())
        if str(each.get("bom-ref", "")).startswith(start)
    ]


def _metrics(*, of_security: bool) -> Callable[[Bill], list[Bill]]:
    path = "metadata.component.modelCard.quantitativeAnalysis.performanceMetrics"
    return lambda bill: [
        each
        for each in _value(bill, path) or ()
        if str(each["type"]).startswith("security: ") is of_security
    ]


def _links(bill: Bill) -> list[Bill]:
    linked = {ref for each in bill.get("dependencies", ()) for ref in each.get("dependsOn", ())}
    return [{"is_linked": each["bom-ref"] in linked} for each in _of_type("data")(bill)]


_PARTS: Mapping[str, Callable[[Bill], Sequence[Bill]]] = {
    "bill": lambda bill: [bill],
    "bundle": lambda bill: [_value(bill, "metadata.component") or {}],
    "tools": lambda bill: _value(bill, "metadata.tools.components") or (),
    "models": _of_type("machine-learning-model"),
    "source": _referred("source-model"),
    "variants": _referred("variant/"),
    "data": _of_type("data"),
    "datasets": lambda bill: [each["data"][0] for each in _of_type("data")(bill)],
    "links of data": _links,
    "metrics": _metrics(of_security=False),
    "metrics of security": _metrics(of_security=True),
}
"""What can have an element: the parts of a bill of materials by what they are."""


def _read() -> tuple[MinimumElement, ...]:
    text = (resources.files(_FOLDER) / _FILE).read_text(encoding="utf-8")
    return tuple(
        MinimumElement(cluster, name, row.get("place", row["path"]), row["of"], row["path"])
        for cluster, rows in tomllib.loads(text).items()
        for name, row in rows.items()
    )


MINIMUM_ELEMENTS = _read()
"""In the G7's order; places of a system's elements are those of `metadata.component`."""

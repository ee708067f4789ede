"""The minimum elements of an SBOM for AI, and where each stands in ours.

From "Software Bill of Materials for AI: Minimum Elements" of the G7 Cybersecurity Working Group,
published on 2026-05-12: 50 elements in seven clusters. One that several components have (a model's
license, say) counts where each of them has it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

Bill = Mapping[str, Any]


class MinimumElement(NamedTuple):
    """One element.

    Attributes:
        cluster: The G7's cluster.
        name: The G7's name.
        place: Where it stands in the bill of materials, for people.
        of: What should have it, see `_PARTS`.
        path: Where it stands there: keys, and in brackets the name or type of a list's entry.
    """

    cluster: str
    name: str
    place: str
    of: str
    path: str

    def is_in(self, bill: Bill) -> bool:
        """Whether a bill has it, of every component that should."""
        found = [_value(part, self.path) for part in _PARTS[self.of](bill)]
        return bool(found) and all(found)


def count_elements(bill: Bill) -> tuple[int, tuple[str, ...]]:
    """How many of the elements a bill has, and the names of those that it lacks."""
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

_CARD = "modelCard.modelParameters"
_OWN = "properties, edgepack:"
_MD, _SLP, _MDL = "Metadata", "System level properties", "Models"
_DP, _INF, _SP = "Dataset properties", "Infrastructure", "Security properties"
_KPI = "Key performance indicators"


def _own(name: str) -> str:
    return f"properties[edgepack:{name}]"


MINIMUM_ELEMENTS: tuple[MinimumElement, ...] = tuple(
    MinimumElement(*row)
    for row in (
        (_MD, "SBOM author", "metadata.authors", "bill", "metadata.authors"),
        (_MD, "SBOM version", "version", "bill", "version"),
        (_MD, "SBOM data format name", "bomFormat", "bill", "bomFormat"),
        (_MD, "SBOM data format version", "specVersion", "bill", "specVersion"),
        (
            *(_MD, "SBOM author signature", "externalReferences, digital-signature"),
            *("bill", "externalReferences[digital-signature]"),
        ),
        (_MD, "SBOM tool name", "metadata.tools.components, name", "tools", "name"),
        (_MD, "SBOM tool version", "metadata.tools.components, version", "tools", "version"),
        (_MD, "SBOM generation context", "metadata.lifecycles", "bill", "metadata.lifecycles"),
        (_MD, "SBOM timestamp", "metadata.timestamp", "bill", "metadata.timestamp"),
        (_MD, "SBOM dependency relationship", "dependencies", "bill", "dependencies"),
        (_SLP, "System name", "name", "bundle", "name"),
        (_SLP, "System components", "components", "bill", "components"),
        (_SLP, "System producer", "manufacturer", "bundle", "manufacturer"),
        (_SLP, "System version", "version", "bundle", "version"),
        (_SLP, "System timestamp", f"{_OWN}created-at", "bundle", _own("created-at")),
        (_SLP, "System data flow", f"{_OWN}data-flow", "bundle", _own("data-flow")),
        (_SLP, "System data usage", f"{_OWN}data-usage", "bundle", _own("data-usage")),
        (
            *(_SLP, "System input/output properties", f"{_CARD}, inputs and outputs"),
            *("bundle", f"{_CARD}.inputs"),
        ),
        (
            *(_SLP, "Intended application area", "modelCard.considerations.useCases"),
            *("bundle", "modelCard.considerations.useCases"),
        ),
        (_MDL, "Model name", "name", "models", "name"),
        (_MDL, "Model identifier", "purl", "models", "purl"),
        (_MDL, "Model version", "version", "models", "version"),
        (_MDL, "Model timestamp", f"{_OWN}created-at", "models", _own("created-at")),
        (_MDL, "Model producer", "manufacturer", "models", "manufacturer"),
        (_MDL, "Model description", "description", "models", "description"),
        (_MDL, "Model hash value", "hashes, content", "models", "hashes"),
        (_MDL, "Model hash algorithm", "hashes, alg", "models", "hashes"),
        (
            *(_MDL, "Model properties", f"{_CARD}.task, .modelArchitecture; {_OWN}precision"),
            *("models", f"{_CARD}.task"),
        ),
        (
            *(_MDL, "Model input/output properties", f"{_CARD}, inputs and outputs"),
            *("models", f"{_CARD}.inputs"),
        ),
        (_MDL, "Model training properties", f"{_OWN}training", "source", _own("training")),
        (_MDL, "Model license", "licenses", "models", "licenses"),
        (_MDL, "Model external references", "externalReferences", "models", "externalReferences"),
        (_DP, "Dataset name", "name", "data", "name"),
        (_DP, "Dataset description", "description", "data", "description"),
        (_DP, "Dataset content", "data.contents", "datasets", "contents"),
        (_DP, "Dataset identifier", f"{_OWN}identifier", "data", _own("identifier")),
        (_DP, "Dataset hash", "hashes", "data", "hashes"),
        (_DP, "Dataset provenance", f"{_OWN}provenance", "data", _own("provenance")),
        (_DP, "Dataset statistical properties", f"{_OWN}statistics", "data", _own("statistics")),
        (_DP, "Dataset sensitivity", "data.classification", "datasets", "classification"),
        (_DP, "Dataset dependency relationship", "dependencies", "links of data", "is_linked"),
        (_DP, "Dataset license", "licenses", "data", "licenses"),
        (
            *(_INF, "Infrastructure software", f"{_OWN}requires-runtime, provider"),
            *("variants", _own("requires-runtime")),
        ),
        (
            *(_INF, "Infrastructure hardware", f"{_OWN}device, requires-arch, requires-soc …"),
            *("variants", _own("device")),
        ),
        (_SP, "Security controls", f"{_OWN}security-control", "bundle", _own("security-control")),
        (
            *(_SP, "Security compliance", f"{_OWN}security-compliance"),
            *("bundle", _own("security-compliance")),
        ),
        (
            *(_SP, "Cybersecurity policy information", "externalReferences, security-contact"),
            *("bundle", "externalReferences[security-contact]"),
        ),
        (
            *(_SP, "Vulnerability referencing", "externalReferences, vulnerability-assertion"),
            *("bundle", "externalReferences[vulnerability-assertion]"),
        ),
        (
            *(_KPI, "Security metrics", "performanceMetrics, security: …"),
            *("metrics of security", "value"),
        ),
        (
            *(_KPI, "Operational performance KPIs", "performanceMetrics, by variant"),
            *("metrics", "value"),
        ),
    )
)
"""In the G7's order; places of a system's elements are those of `metadata.component`."""

"""The minimum elements of an SBOM for AI, and where each stands in ours.

From "Software Bill of Materials for AI: Minimum Elements" of the G7 Cybersecurity Working Group,
published on 2026-05-12: 50 elements in seven clusters. One that several components have (a model's
license, say) counts where each of them has it.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

Bill = Mapping[str, Any]
_Finder = Callable[[Bill], Iterable[object]]


class MinimumElement(NamedTuple):
    """One element.

    Attributes:
        cluster: The G7's cluster.
        name: The G7's name.
        place: Where it stands in the bill of materials, for people.
        find: Gives what stands there, once for each component that should have it.
    """

    cluster: str
    name: str
    place: str
    find: _Finder

    def is_in(self, bill: Bill) -> bool:
        """Whether a bill has it, of every component that should."""
        found = list(self.find(bill))
        return bool(found) and all(found)


def count_elements(bill: Bill) -> tuple[int, tuple[str, ...]]:
    """How many of the elements a bill has, and the names of those that it lacks."""
    lacking = tuple(each.name for each in MINIMUM_ELEMENTS if not each.is_in(bill))
    return len(MINIMUM_ELEMENTS) - len(lacking), lacking


def _top(*keys: str) -> _Finder:
    return lambda bill: [_value(bill, keys)]


def _system(*keys: str) -> _Finder:
    return _top("metadata", "component", *keys)


def _of(kind: str, *keys: str) -> _Finder:
    return lambda bill: [_value(each, keys) for each in _components(bill, kind)]


def _models(*keys: str) -> _Finder:
    return _of("machine-learning-model", *keys)


def _data(*keys: str) -> _Finder:
    return _of("data", *keys)


def _property(name: str, kind: str) -> _Finder:
    return lambda bill: [_has_property(each, name) for each in _components(bill, kind)]


def _system_property(name: str) -> _Finder:
    return lambda bill: [_has_property(_value(bill, ("metadata", "component")) or {}, name)]


def _system_reference(kind: str) -> _Finder:
    return lambda bill: [
        any(
            each["type"] == kind
            for each in _value(bill, ("metadata", "component", "externalReferences")) or ()
        )
    ]


def _signature(bill: Bill) -> Iterable[object]:
    return [any(each["type"] == "digital-signature" for each in bill.get("externalReferences", ()))]


def _tools(key: str) -> _Finder:
    return lambda bill: [
        each.get(key) for each in _value(bill, ("metadata", "tools", "components")) or ()
    ]


def _source_training(bill: Bill) -> Iterable[object]:
    sources = [each for each in bill.get("components", ()) if each.get("bom-ref") == "source-model"]
    return [_has_property(each, "training") for each in sources]


def _variant_property(name: str) -> _Finder:
    return lambda bill: [
        _has_property(each, name)
        for each in bill.get("components", ())
        if str(each.get("bom-ref", "")).startswith("variant/")
    ]


def _metrics(*, of_security: bool) -> _Finder:
    path = ("metadata", "component", "modelCard", "quantitativeAnalysis", "performanceMetrics")

    def find(bill: Bill) -> Iterable[object]:
        return [
            any(
                str(each["type"]).startswith("security: ") is of_security
                for each in _value(bill, path) or ()
            )
        ]

    return find


def _linked_data(bill: Bill) -> Iterable[object]:
    linked = {ref for each in bill.get("dependencies", ()) for ref in each.get("dependsOn", ())}
    return [each["bom-ref"] in linked for each in _components(bill, "data")]


def _components(bill: Bill, kind: str) -> list[Mapping[str, Any]]:
    return [each for each in bill.get("components", ()) if each["type"] == kind]


def _has_property(component: Mapping[str, Any], name: str) -> bool:
    return any(each["name"] == f"edgepack:{name}" for each in component.get("properties", ()))


def _value(part: Any, keys: Iterable[str]) -> Any:
    for key in keys:
        part = part.get(key) if isinstance(part, Mapping) else None
    return part


_PARAMETERS = ("modelCard", "modelParameters")
_CARD = "modelCard.modelParameters"
_OWN = "properties, edgepack:"
_MD, _SLP, _MDL = "Metadata", "System level properties", "Models"
_DP, _INF, _SP = "Dataset properties", "Infrastructure", "Security properties"
_KPI = "Key performance indicators"

MINIMUM_ELEMENTS: tuple[MinimumElement, ...] = tuple(
    MinimumElement(*row)
    for row in (
        (_MD, "SBOM author", "metadata.authors", _top("metadata", "authors")),
        (_MD, "SBOM version", "version", _top("version")),
        (_MD, "SBOM data format name", "bomFormat", _top("bomFormat")),
        (_MD, "SBOM data format version", "specVersion", _top("specVersion")),
        (_MD, "SBOM author signature", "externalReferences, digital-signature", _signature),
        (_MD, "SBOM tool name", "metadata.tools.components, name", _tools("name")),
        (_MD, "SBOM tool version", "metadata.tools.components, version", _tools("version")),
        (_MD, "SBOM generation context", "metadata.lifecycles", _top("metadata", "lifecycles")),
        (_MD, "SBOM timestamp", "metadata.timestamp", _top("metadata", "timestamp")),
        (_MD, "SBOM dependency relationship", "dependencies", _top("dependencies")),
        (_SLP, "System name", "name", _system("name")),
        (_SLP, "System components", "components", _top("components")),
        (_SLP, "System producer", "manufacturer", _system("manufacturer")),
        (_SLP, "System version", "version", _system("version")),
        (_SLP, "System timestamp", f"{_OWN}created-at", _system_property("created-at")),
        (_SLP, "System data flow", f"{_OWN}data-flow", _system_property("data-flow")),
        (_SLP, "System data usage", f"{_OWN}data-usage", _system_property("data-usage")),
        (
            *(_SLP, "System input/output properties", f"{_CARD}, inputs and outputs"),
            _system(*_PARAMETERS, "inputs"),
        ),
        (
            *(_SLP, "Intended application area", "modelCard.considerations.useCases"),
            _system("modelCard", "considerations", "useCases"),
        ),
        (_MDL, "Model name", "name", _models("name")),
        (_MDL, "Model identifier", "purl", _models("purl")),
        (_MDL, "Model version", "version", _models("version")),
        (
            *(_MDL, "Model timestamp", f"{_OWN}created-at"),
            _property("created-at", "machine-learning-model"),
        ),
        (_MDL, "Model producer", "manufacturer", _models("manufacturer")),
        (_MDL, "Model description", "description", _models("description")),
        (_MDL, "Model hash value", "hashes, content", _models("hashes")),
        (_MDL, "Model hash algorithm", "hashes, alg", _models("hashes")),
        (
            *(_MDL, "Model properties", f"{_CARD}.task, .modelArchitecture; {_OWN}precision"),
            _models(*_PARAMETERS, "task"),
        ),
        (
            *(_MDL, "Model input/output properties", f"{_CARD}, inputs and outputs"),
            _models(*_PARAMETERS, "inputs"),
        ),
        (_MDL, "Model training properties", f"{_OWN}training", _source_training),
        (_MDL, "Model license", "licenses", _models("licenses")),
        (_MDL, "Model external references", "externalReferences", _models("externalReferences")),
        (_DP, "Dataset name", "name", _data("name")),
        (_DP, "Dataset description", "description", _data("description")),
        (
            *(_DP, "Dataset content", "data.contents"),
            lambda bill: [
                _value(each["data"][0], ("contents",)) for each in _components(bill, "data")
            ],
        ),
        (_DP, "Dataset identifier", f"{_OWN}identifier", _property("identifier", "data")),
        (_DP, "Dataset hash", "hashes", _data("hashes")),
        (_DP, "Dataset provenance", f"{_OWN}provenance", _property("provenance", "data")),
        (
            *(_DP, "Dataset statistical properties", f"{_OWN}statistics"),
            _property("statistics", "data"),
        ),
        (
            *(_DP, "Dataset sensitivity", "data.classification"),
            lambda bill: [
                _value(each["data"][0], ("classification",)) for each in _components(bill, "data")
            ],
        ),
        (_DP, "Dataset dependency relationship", "dependencies", _linked_data),
        (_DP, "Dataset license", "licenses", _data("licenses")),
        (
            *(_INF, "Infrastructure software", f"{_OWN}requires-runtime, provider"),
            _variant_property("requires-runtime"),
        ),
        (
            *(_INF, "Infrastructure hardware", f"{_OWN}device, requires-arch, requires-soc …"),
            _variant_property("device"),
        ),
        (
            *(_SP, "Security controls", f"{_OWN}security-control"),
            _system_property("security-control"),
        ),
        (
            *(_SP, "Security compliance", f"{_OWN}security-compliance"),
            _system_property("security-compliance"),
        ),
        (
            *(_SP, "Cybersecurity policy information", "externalReferences, security-contact"),
            _system_reference("security-contact"),
        ),
        (
            *(_SP, "Vulnerability referencing", "externalReferences, vulnerability-assertion"),
            _system_reference("vulnerability-assertion"),
        ),
        (
            *(_KPI, "Security metrics", "performanceMetrics, security: …"),
            _metrics(of_security=True),
        ),
        (
            *(_KPI, "Operational performance KPIs", "performanceMetrics, by variant"),
            _metrics(of_security=False),
        ),
    )
)
"""In the G7's order; places of a system's elements are those of `metadata.component`."""

"""Parts of a CycloneDX document that many components have."""

from collections.abc import Mapping
from typing import Any

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

_OWN = "edgepack:"


def compose_licenses(license: str) -> list[dict[str, Any]]:
    """Return a license as an SPDX expression if valid, else by its name."""
    if not license:
        return []
    try:
        return [{"expression": str(canonicalize_license_expression(license))}]
    except InvalidLicenseExpression:
        return [{"license": {"name": license}}]


def compose_properties(values: Mapping[str, str | tuple[str, ...]]) -> list[dict[str, str]]:
    """Return facts without a field in CycloneDX, except facts without a value."""
    return [
        {"name": _OWN + name, "value": value}
        for name, given in values.items()
        for value in ((given,) if isinstance(given, str) else given)
        if value
    ]


def without_empty(document: Any) -> Any:
    """Return the document without empty values: "", [], {}, and containers of nothing else."""
    if isinstance(document, dict):
        kept = {key: without_empty(value) for key, value in document.items()}
        return {key: value for key, value in kept.items() if value not in ("", [], {})}
    if isinstance(document, list):
        return [entry for entry in map(without_empty, document) if entry not in ("", [], {})]
    return document

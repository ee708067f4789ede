"""Additions of a newer minor version to a manifest are ignored; foreign keys are not."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgepack.bundle.manifest import FORMAT_MINOR, PlainRuntime, decode_manifest
from edgepack.errors import BundleError


def _variant(document: Any) -> Any:
    return document["components"]["model"]["variants"]["cpu"]


def _own(part: Any) -> Any:
    return part["additional_metadata"]["edgepack"]


def _grow(document: Any, *, minor: int) -> Any:
    """Add keys like a newer edgepack."""
    _own(document).update(minor=minor, mood="good")
    _own(document)["files"][0]["colour"] = "red"
    facts = _own(_variant(document))
    facts["requires"]["moon"] = ["full"]
    facts["tolerances"]["y"]["sharpness_min"] = 0.5
    facts["plain_runtime"] = {"releases": ["9.9"], "right": True, "speed": 3}
    return document


@pytest.fixture
def document(bundle: Path) -> Any:
    return json.loads((bundle / "manifest.json").read_bytes())


def test_a_newer_minor_version_is_read(document: Any) -> None:
    before = decode_manifest(json.dumps(document).encode())
    grown = decode_manifest(json.dumps(_grow(document, minor=FORMAT_MINOR + 1)).encode())
    assert grown.facts.files == before.facts.files
    assert grown.variant("cpu").facts.tolerances == before.variant("cpu").facts.tolerances
    assert grown.variant("cpu").facts.plain_runtime == PlainRuntime(releases=("9.9",), right=True)


def test_what_no_version_has_is_refused_in_this_one(document: Any) -> None:
    with pytest.raises(BundleError, match="unknown field"):
        decode_manifest(json.dumps(_grow(document, minor=FORMAT_MINOR)).encode())


@pytest.mark.parametrize(
    "spoil",
    [
        lambda document: document.update(extra=1),
        lambda document: _variant(document)["executor_info"]["ort"].update(extra=1),
        lambda document: _own(document).update(release=-1),
        lambda document: _own(_variant(document)).update(additional_metadata=[], files={}),
    ],
    ids=["a key at the top", "a key of ONNX Runtime's", "a wrong value", "a wrong type"],
)
def test_a_newer_minor_version_excuses_nothing_else(
    document: Any, spoil: Callable[[Any], None]
) -> None:
    grown = _grow(document, minor=FORMAT_MINOR + 1)
    spoil(grown)
    with pytest.raises(BundleError):
        decode_manifest(json.dumps(grown).encode())

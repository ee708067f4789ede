"""The two documents of a bundle's origin, and the check that both describe this bundle.

`provenance.json` is an in-toto statement with a SLSA provenance v1 predicate, `ml-bom.cdx.json` a
CycloneDX bill of materials. The bundle's signature covers both files; no device needs them. Bundles
of older releases have neither.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from edgepack.bundle.archive import read_files
from edgepack.bundle.chunks import read_bounded
from edgepack.bundle.manifest import Manifest
from edgepack.bundle.metadata import Sha256
from edgepack.bundle.strict_json import convert_json, parse_json
from edgepack.errors import BundleError

PROVENANCE_FILE = "provenance.json"
BILL_FILE = "ml-bom.cdx.json"

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
SLSA_PREDICATE_TYPE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:edgepack:build:1"
PROFILE_ROLE = "profile"

MAX_DOCUMENT_BYTES = 8 * 1024 * 1024
_BILL_FORMAT = "CycloneDX"


T = TypeVar("T")
_Line = Annotated[str, msgspec.Meta(max_length=8000)]


class _Digests(msgspec.Struct, frozen=True):
    sha256: Sha256


class _Subject(msgspec.Struct, frozen=True):
    name: _Line
    digest: _Digests


class _Resource(msgspec.Struct, frozen=True):
    name: _Line
    digest: _Digests
    annotations: dict[str, Any] = {}


class _Definition(msgspec.Struct, frozen=True, rename="camel"):
    build_type: _Line
    resolved_dependencies: tuple[_Resource, ...]


class _Builder(msgspec.Struct, frozen=True):
    id: _Line
    version: dict[str, _Line] = {}


class _Run(msgspec.Struct, frozen=True):
    builder: _Builder


class _Predicate(msgspec.Struct, frozen=True, rename="camel"):
    build_definition: _Definition
    run_details: _Run


class _Statement(msgspec.Struct, frozen=True, rename="camel"):
    type: _Line = msgspec.field(name="_type")
    subject: tuple[_Subject, ...]
    predicate_type: _Line
    predicate: _Predicate


class _Hash(msgspec.Struct, frozen=True):
    alg: _Line
    content: _Line


class _Part(msgspec.Struct, frozen=True):
    name: _Line
    type: _Line
    hashes: tuple[_Hash, ...] = ()


class _Component(msgspec.Struct, frozen=True):
    name: _Line
    type: _Line
    licenses: tuple[dict[str, Any], ...] = ()
    components: tuple[_Part, ...] = ()
    manufacturer: dict[str, Any] = {}


class _BillMetadata(msgspec.Struct, frozen=True):
    component: _Component


class _Bill(msgspec.Struct, frozen=True, rename="camel"):
    bom_format: _Line
    spec_version: _Line
    metadata: _BillMetadata
    components: tuple[_Component, ...] = ()


class Dependency(msgspec.Struct, frozen=True, kw_only=True):
    """Input of a build: its name, its SHA-256 in hex, and its role."""

    name: str
    sha256: str
    role: str


class Provenance(msgspec.Struct, frozen=True, kw_only=True):
    """Summary of `provenance.json`.

    Attributes:
        builder_id: URI of the builder.
        tools: Versions of the tools.
        dependencies: Source model, samples, profiles and other files.
    """

    builder_id: str
    tools: dict[str, str]
    dependencies: tuple[Dependency, ...]


class BillOfMaterials(msgspec.Struct, frozen=True, kw_only=True):
    """Summary of `ml-bom.cdx.json`.

    Attributes:
        spec_version: Of CycloneDX.
        license: License of the model; "" if unknown.
        producer: Maker of the model; "" if unknown.
        models, datasets: Names of these components.
    """

    spec_version: str
    license: str
    producer: str
    models: tuple[str, ...]
    datasets: tuple[str, ...]


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Both documents; None where the bundle has none."""

    provenance: Provenance | None
    bill: BillOfMaterials | None


def read_documents(bundle: Path) -> dict[str, bytes]:
    """Read the present documents of a bundle in either form.

    Raises:
        BundleError: A document is too long, or cannot be read.
    """
    names = (PROVENANCE_FILE, BILL_FILE)
    if not bundle.is_dir():
        return read_files(bundle, names, MAX_DOCUMENT_BYTES)
    there = [name for name in names if (bundle / name).exists()]
    return {name: read_bounded(bundle / name, MAX_DOCUMENT_BYTES) for name in there}


def read_origin(documents: Mapping[str, bytes], manifest: Manifest) -> Origin:
    """Read both documents and compare both with the manifest.

    1. The provenance is of the known types.
    2. Its subjects are the bundle's files, all but itself, with the manifest's digests.
    3. The provenance names the manifest's source model and every variant's profile by their
      digests.
    4. The bill of materials is CycloneDX, and its files have the manifest's digests: all files of
       each variant.

    Args:
        documents: Result of `read_documents`.
        manifest: The bundle's, which names the documents too.

    Raises:
        BundleError: A document is malformed or tells of another bundle.
    """
    digests = {entry.path: entry.sha256 for entry in manifest.files}
    provenance = bill = None
    if (content := documents.get(PROVENANCE_FILE)) is not None:
        provenance = _read_provenance(content, manifest, digests)
    if (content := documents.get(BILL_FILE)) is not None:
        bill = _read_bill(content, manifest)
    return Origin(provenance=provenance, bill=bill)


def _read_provenance(content: bytes, manifest: Manifest, digests: Mapping[str, str]) -> Provenance:
    # 1
    statement = _decode(content, _Statement, PROVENANCE_FILE)
    for found, expected, key in (
        (statement.type, STATEMENT_TYPE, "_type"),
        (statement.predicate_type, SLSA_PREDICATE_TYPE, "predicateType"),
    ):
        if found != expected:
            raise BundleError(
                f"{PROVENANCE_FILE} is of the type {found!a}, expected {expected!r}",
                found_in=f"{PROVENANCE_FILE}, {key}",
            )
    # 2
    subjects = {each.name: each.digest.sha256 for each in statement.subject}
    _compare(subjects, _without(digests, PROVENANCE_FILE), PROVENANCE_FILE)
    # 3
    definition = statement.predicate.build_definition
    dependencies = tuple(
        Dependency(
            name=each.name,
            sha256=each.digest.sha256,
            role=str(each.annotations.get("role", "")),
        )
        for each in definition.resolved_dependencies
    )
    if manifest.facts.source_sha256 not in {each.sha256 for each in dependencies}:
        raise BundleError(
            "the provenance names another source model than the manifest",
            found_in=f"{PROVENANCE_FILE}, predicate.buildDefinition.resolvedDependencies",
        )
    profiles = {each.name: each.sha256 for each in dependencies if each.role == PROFILE_ROLE}
    for variant in manifest.variants:
        if profiles.get(variant.facts.profile) != variant.facts.profile_sha256:
            raise BundleError(
                f"the provenance tells of another profile '{variant.facts.profile}' than the "
                "manifest",
                found_in=f"{PROVENANCE_FILE}, predicate.buildDefinition.resolvedDependencies",
            )
    builder = statement.predicate.run_details.builder
    return Provenance(builder_id=builder.id, tools=builder.version, dependencies=dependencies)


def _read_bill(content: bytes, manifest: Manifest) -> BillOfMaterials:
    # 4
    bill = _decode(content, _Bill, BILL_FILE)
    if bill.bom_format != _BILL_FORMAT:
        raise BundleError(
            f"{BILL_FILE} is of the format {bill.bom_format!a}, expected '{_BILL_FORMAT}'",
            found_in=f"{BILL_FILE}, bomFormat",
        )
    found = {
        part.name: next((it.content for it in part.hashes if it.alg == "SHA-256"), "")
        for component in bill.components
        for part in component.components
        if part.type == "file"
    }
    expected = {
        entry.path: entry.sha256 for each in manifest.variants for entry in each.facts.files
    }
    _compare(found, expected, BILL_FILE)
    about = bill.metadata.component
    named = about.licenses[0] if about.licenses else {}
    listed = named.get("license")
    detail = listed if isinstance(listed, dict) else {}
    return BillOfMaterials(
        spec_version=bill.spec_version,
        license=str(named.get("expression") or detail.get("id") or detail.get("name") or ""),
        producer=str(about.manufacturer.get("name", "")),
        models=_names(bill, "machine-learning-model"),
        datasets=_names(bill, "data"),
    )


def _compare(found: Mapping[str, str], expected: Mapping[str, str], document: str) -> None:
    for path in sorted(found.keys() | expected.keys()):
        if found.get(path) == expected.get(path):
            continue
        if path not in expected:
            problem = f"{document} tells of {path!a}, which the manifest does not list"
        elif path not in found:
            problem = f"{document} says nothing of '{path}'"
        else:
            problem = f"{document} and the manifest have different digests of '{path}'"
        raise BundleError(
            problem, found_in=document, remedy="build the bundle again: it was put together by hand"
        )


def _decode(content: bytes, kind: type[T], name: str) -> T:
    document = parse_json(content, limit_bytes=MAX_DOCUMENT_BYTES, found_in=name)
    return convert_json(document, kind, found_in=name)


def _names(bill: _Bill, kind: str) -> tuple[str, ...]:
    return tuple(component.name for component in bill.components if component.type == kind)


def _without(digests: Mapping[str, str], path: str) -> dict[str, str]:
    return {name: sha256 for name, sha256 in digests.items() if name != path}

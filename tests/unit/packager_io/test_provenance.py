"""Provenance and bill of materials are of the published formats, and tell of this bundle."""

import contextlib
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cyclonedx.schema import SchemaVersion
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st
from in_toto_attestation.v1.statement import Statement

from edgepack.bundle.cli import describe_origin
from edgepack.bundle.provenance import BILL_FILE, PROVENANCE_FILE, read_origin
from edgepack.errors import BundleError
from edgepack.packager.config.about import AboutSection
from edgepack.packager.provenance.bill import compose_bill
from edgepack.packager.provenance.minimum_elements import MINIMUM_ELEMENTS, count_elements
from edgepack.packager.provenance.record import BuildRecord, SampleSet, encode_document
from edgepack.packager.provenance.statement import compose_statement
from edgepack.packager.source.stated_facts import StatedFacts
from tests.unit.packager_io.records import (
    ABOUT,
    make_described_record,
    make_documents,
    make_entry,
    make_record,
)

DOCS = Path(__file__).parents[3] / "docs"
RANDOM = (
    SampleSet(used_for="calibration", count=7, sha256="34" * 32, is_random=True),
    SampleSet(used_for="evaluation", count=3, sha256="56" * 32, is_random=True),
)


def check_schema(bill: bytes) -> None:
    """Check a bill against the schema that CycloneDX publishes."""
    # The import compiles 38 grammars, for seconds: not in each worker that collects the tests.
    from cyclonedx.validation.json import JsonStrictValidator

    error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(bill.decode())
    assert error is None, error


@pytest.mark.parametrize(
    "record",
    [
        make_record(),
        make_described_record(),
        make_record(samples=RANDOM),
        make_record(about=AboutSection(license="LicenseRef-Own")),
        make_record(
            stated=StatedFacts(
                license="openrail",
                authors=("A. Nyone",),
                datasets=("imagenet-1k",),
                base_models=("google/vit",),
            )
        ),
    ],
    ids=["bare", "described", "random samples", "own license", "model card"],
)
def test_the_bill_is_valid_by_the_official_schema(record: BuildRecord) -> None:
    check_schema(encode_document(compose_bill(record)))


def test_the_provenance_is_a_statement_that_the_in_toto_library_reads() -> None:
    document = compose_statement(make_described_record(), [make_entry("report.json")])
    statement = Statement.copy_from_pb(json_format.ParseDict(document, Statement([], "", {}).pb))
    statement.validate()
    assert document["predicateType"] == "https://slsa.dev/provenance/v1"
    definition = document["predicate"]["buildDefinition"]
    assert {
        entry["name"]: entry["digest"]["sha256"] for entry in definition["resolvedDependencies"]
    } == {
        "<script>alert(1)</script>.onnx": "cd" * 32,
        "calibration samples": "34" * 32,
        "evaluation samples": "56" * 32,
        "cpu": make_record().variants[0].facts.profile_sha256,
        "edgepack.toml": "78" * 32,
    }
    assert definition["externalParameters"]["profiles"] == ["cpu"]
    assert document["predicate"]["runDetails"]["builder"]["id"] == "https://ci.example.com/edgepack"


def test_a_described_model_has_all_minimum_elements_and_a_bare_one_only_what_is_known() -> None:
    assert len(MINIMUM_ELEMENTS) == 50
    assert count_elements(compose_bill(make_described_record())) == (50, ())
    count, lacking = count_elements(compose_bill(make_record()))
    assert {"SBOM author", "Model license", "Dataset sensitivity", "SBOM timestamp"} <= set(lacking)
    assert "Operational performance KPIs" not in lacking
    assert count == 50 - len(lacking)


def test_nine_tenths_are_there_where_nobody_attacked_or_certified_the_model() -> None:
    about = msgspec.structs.replace(
        ABOUT, security_compliance=(), security_metrics={}, vulnerabilities="", architecture=""
    )
    count, lacking = count_elements(compose_bill(make_described_record(about=about)))
    assert count >= 0.9 * len(MINIMUM_ELEMENTS), lacking
    assert set(lacking) == {
        "Security compliance",
        "Security metrics",
        "Vulnerability referencing",
    }


def test_an_element_that_one_of_two_models_lacks_does_not_count() -> None:
    bill = compose_bill(make_described_record())
    del bill["components"][1]["licenses"]
    assert count_elements(bill) == (49, ("Model license",))


def test_the_table_in_the_docs_is_the_one_that_is_counted() -> None:
    page = (DOCS / "reference" / "bill-of-materials.md").read_text()
    rows = [f"| {each.cluster} | {each.name} | `{each.place}` |" for each in MINIMUM_ELEMENTS]
    listed = [line for line in page.splitlines() if line.startswith("| ") and "`" in line]
    assert [line for line in listed if line.count("|") == 4] == rows


def test_nothing_is_filled_with_words_that_say_nothing() -> None:
    text = encode_document(compose_bill(make_record())).decode().lower()
    assert not [word for word in ("unknown", "n/a", '""', "noassertion", "null") if word in text]


def test_the_same_build_gives_the_same_bytes_and_another_one_another_serial_number() -> None:
    first, second = compose_bill(make_record()), compose_bill(make_record())
    assert encode_document(first) == encode_document(second)
    assert compose_bill(make_described_record())["serialNumber"] != first["serialNumber"]


def test_what_a_person_says_counts_before_what_the_file_says() -> None:
    stated = StatedFacts(license="MIT", task="classification", exporter="pytorch 2.9")
    alone = compose_bill(make_record(stated=stated))["components"][0]
    assert alone["licenses"] == [{"expression": "MIT"}]
    assert alone["modelCard"]["modelParameters"]["task"] == "classification"
    both = compose_bill(make_described_record(stated=stated))["components"][0]
    assert both["licenses"] == [{"expression": "Apache-2.0"}]
    assert both["modelCard"]["modelParameters"]["task"] == "text recognition"


def test_the_one_data_set_named_for_calibration_is_what_the_samples_are() -> None:
    bill = compose_bill(make_described_record())
    data = {each["bom-ref"]: each for each in bill["components"] if each["type"] == "data"}
    assert set(data) == {"training/training", "calibration/calibration", "evaluation/evaluation"}
    assert data["calibration/calibration"]["hashes"][0]["content"] == "34" * 32
    assert data["training/training"]["hashes"][0]["content"] == "12" * 32


def test_random_samples_are_called_so() -> None:
    bill = compose_bill(make_described_record(samples=RANDOM))
    names = {each["name"] for each in bill["components"] if each["type"] == "data"}
    assert names >= {"random calibration samples", "random evaluation samples", "calibration"}


def test_documents_that_tell_of_this_bundle_are_read() -> None:
    documents, manifest = make_documents(make_described_record())
    origin = read_origin(documents, manifest)
    assert origin.provenance is not None
    assert origin.bill is not None
    assert (origin.bill.license, origin.bill.producer) == ("Apache-2.0", "Example Vision")
    assert origin.bill.models == ("<script>alert(1)</script>.onnx", "cpu")
    lines = "\n".join(describe_origin(origin))
    assert "built by:      https://ci.example.com/edgepack" in lines
    assert "license:       Apache-2.0" in lines


def test_a_bundle_without_the_documents_has_no_origin() -> None:
    origin = read_origin({}, make_documents(make_record())[1])
    assert list(describe_origin(origin)) == []


def _break(document: str, path: tuple[str | int, ...], value: Any) -> dict[str, bytes]:
    documents, _ = make_documents(make_record())
    changed = json.loads(documents[document])
    part = changed
    for step in path[:-1]:
        part = part[step]
    part[path[-1]] = value
    return {document: json.dumps(changed).encode()}


_PREDICATE = ("predicate", "buildDefinition", "resolvedDependencies")


@pytest.mark.parametrize(
    ("document", "path", "value", "said"),
    [
        (PROVENANCE_FILE, ("predicateType",), "https://slsa.dev/provenance/v0.2", "expected"),
        (PROVENANCE_FILE, ("_type",), "another", "of the type 'another'"),
        (PROVENANCE_FILE, ("subject", 0, "digest", "sha256"), "00" * 32, "different digests"),
        (PROVENANCE_FILE, ("subject", 0, "name"), "other.bin", "nothing of 'golden/golden.npz'"),
        (PROVENANCE_FILE, ("subject",), [], "says nothing of"),
        (PROVENANCE_FILE, (*_PREDICATE, 0, "digest", "sha256"), "00" * 32, "source model"),
        (PROVENANCE_FILE, (*_PREDICATE, 3, "digest", "sha256"), "00" * 32, "profile 'cpu'"),
        (BILL_FILE, ("bomFormat",), "SPDX", "format 'SPDX'"),
        (BILL_FILE, ("components", 1, "components", 0, "name"), "model/x", "says nothing of"),
        (
            BILL_FILE,
            ("components", 1, "components", 0, "hashes", 0, "content"),
            "00" * 32,
            "different digests of 'model/cpu/model.onnx'",
        ),
        (BILL_FILE, ("components",), 3, "Expected `array`"),
    ],
)
def test_documents_that_tell_of_something_else_are_refused(
    document: str, path: tuple[str | int, ...], value: Any, said: str
) -> None:
    manifest = make_documents(make_record())[1]
    with pytest.raises(BundleError) as caught:
        read_origin(_break(document, path, value), manifest)
    assert said in caught.value.problem


def test_what_strangers_wrote_steers_no_terminal() -> None:
    documents, manifest = make_documents(make_record(builder_id="urn:x:\x1b[2J"))
    lines = list(describe_origin(read_origin(documents, manifest)))
    assert all(line.isprintable() for line in lines)


_KEYS = ("_type", "subject", "predicate", "predicateType", "components", "metadata", "name", "type")
_DOCUMENTS, _MANIFEST = make_documents(make_described_record())


@given(
    name=st.sampled_from(sorted(_DOCUMENTS)),
    at=st.integers(0, 20_000),
    value=st.integers(0, 255),
    removed=st.integers(0, 3),
)
def test_a_damaged_document_is_refused_in_words_or_read(
    name: str, at: int, value: int, removed: int
) -> None:
    content = bytearray(_DOCUMENTS[name])
    at %= len(content)
    content[at : at + removed] = bytes([value])
    with contextlib.suppress(BundleError):
        list(describe_origin(read_origin({name: bytes(content)}, _MANIFEST)))


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(_KEYS), inner),
    )
)
def test_other_json_is_refused_in_words(document: Any) -> None:
    for name in _DOCUMENTS:
        with pytest.raises(BundleError):
            read_origin({name: json.dumps(document).encode()}, _MANIFEST)

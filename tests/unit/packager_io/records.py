"""Records of builds made up for tests."""

from typing import Any

import msgspec

from edgepack.bundle.manifest import BundleFacts, ChunkIndex, FileEntry, Manifest
from edgepack.bundle.provenance import BILL_FILE, PROVENANCE_FILE
from edgepack.packager.config.about import AboutSection, DatasetSection
from edgepack.packager.provenance.bill import compose_bill
from edgepack.packager.provenance.record import BuildRecord, Material, SampleSet, encode_document
from edgepack.packager.provenance.statement import compose_statement
from tests.simulators.manifests import make_variant
from tests.unit.packager_io.reports import make_report

ABOUT = AboutSection(
    license="Apache-2.0",
    producer="Example Vision",
    description="Reads meters.",
    identifier="pkg:huggingface/example/meters@1",
    task="text recognition",
    architecture="SVTR",
    training="90 epochs, AdamW.",
    intended_use="Meters in cellars.",
    limitations=("Not in the dark.",),
    data_usage="Pictures of meters; no persons.",
    security_controls=("The camera's lid is sealed.",),
    security_compliance=("ETSI EN 303 645",),
    security_contact="https://example.com/.well-known/security.txt",
    vulnerabilities="https://example.com/vex.json",
    security_metrics={"pgd_accuracy": 0.5},
    references={"website": "https://example.com/meters"},
)
DATASETS = {
    use: DatasetSection(
        used_for=use,
        description="Pictures.",
        content="image",
        identifier="https://example.com/data",
        sha256="12" * 32 if use == "training" else "",
        provenance="Taken in 2025.",
        statistics="10 digits, evenly.",
        sensitivity="none",
        license="CC-BY-4.0",
    )
    for use in ("training", "calibration", "evaluation")
}


def make_entry(path: str, sha256: str = "ab" * 32) -> FileEntry:
    """Return an entry of a missing file."""
    return FileEntry(
        path=path, size_bytes=1, sha256=sha256, chunks=ChunkIndex(sizes=(1,), sha256=bytes(32))
    )


def make_record(**changes: Any) -> BuildRecord:
    """Return a build without any user's facts; `changes` replace its fields."""
    variant = make_variant(
        "cpu",
        files=(make_entry("model/cpu/model.onnx"), make_entry("model/cpu/w.bin", "cd" * 32)),
    )
    record = BuildRecord(
        facts=BundleFacts(
            name="meters",
            version="1.2.0",
            release=1_002_000,
            source_sha256="cd" * 32,
            tools={"edgepack": "0.1.0", "python": "3.11"},
            files=(),
        ),
        variants=(variant,),
        model=make_report().model,
        samples=(
            SampleSet(used_for="calibration", count=70, sha256="34" * 32, is_random=False),
            SampleSet(used_for="evaluation", count=30, sha256="56" * 32, is_random=False),
        ),
        materials=(Material(name="edgepack.toml", sha256="78" * 32),),
        external={"model": "meters.onnx", "profiles": ["cpu"]},
        builder_id="https://ci.example.com/edgepack",
        host={"machine": "x86_64"},
    )
    return msgspec.structs.replace(record, **changes)


def make_described_record(**changes: Any) -> BuildRecord:
    """Return a build with all of the user's facts."""
    facts = msgspec.structs.replace(make_record().facts, created_at="2026-01-01T00:00:00Z")
    return make_record(**{"facts": facts, "about": ABOUT, "datasets": DATASETS, **changes})


def make_documents(record: BuildRecord) -> tuple[dict[str, bytes], Manifest]:
    """Return both documents of a build, and their manifest."""
    shared = [make_entry("golden/golden.npz"), make_entry("report.json"), make_entry(BILL_FILE)]
    of_variants = [file for variant in record.variants for file in variant.facts.files]
    documents = {
        BILL_FILE: encode_document(compose_bill(record)),
        PROVENANCE_FILE: encode_document(compose_statement(record, (*shared, *of_variants))),
    }
    files = (*shared, make_entry(PROVENANCE_FILE))
    facts = msgspec.structs.replace(record.facts, files=files)
    return documents, Manifest(facts=facts, variants=record.variants)

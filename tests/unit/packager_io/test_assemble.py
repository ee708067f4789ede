"""A bundle's folder holds the build's files, and of the hooks only a device's."""

from pathlib import Path

import numpy as np
import onnx
from cryptography.hazmat.primitives.asymmetric import ec

from edgepack.bundle.golden import Golden, read_golden
from edgepack.bundle.manifest import GOLDEN_FILE, BundleFacts
from edgepack.bundle.provenance import read_documents, read_origin
from edgepack.bundle.verify import VerifiedBundle, verify_folder
from edgepack.packager.bundling.assemble import BundleParts, finish, lay_out
from edgepack.packager.bundling.prepared_variant import PreparedVariant
from tests.unit.packager_io.records import make_record
from tests.unit.packager_io.reports import CPU, make_report, make_variant

_GOLDEN = Golden(inputs=({"x": np.ones(3, np.float32)},), outputs=({"y": np.ones(3, np.float32)},))


def _variant(folder: Path) -> PreparedVariant:
    told = make_variant()
    (folder / "context").mkdir(parents=True)
    onnx.save(
        onnx.helper.make_model(onnx.helper.make_graph([], "g", [], [])), folder / "model.onnx"
    )
    (folder / "context" / "graph.bin").write_bytes(b"a graph")
    return PreparedVariant(
        name="cpu",
        folder=folder,
        model_file="model.onnx",
        profile="cpu",
        profile_sha256="ab" * 32,
        precision="a8w8",
        provider=CPU,
        device="cpu",
        compatibility_string="",
        session_options={},
        provider_options={},
        requires=told.requires,
        toolchain=told.toolchain,
        accuracy=told.accuracy,
        placement=told.placement,
        tolerances=told.tolerances,
        degraded=False,
        size_bytes=0,
        attempts=(),
        notes=(),
        recipe=(),
        files=(),
    )


def _assemble(tmp_path: Path, hooks: Path | None) -> VerifiedBundle:
    """Write a bundle into a separate folder, then sign and verify the bundle."""
    key = ec.generate_private_key(ec.SECP256R1())
    parts = BundleParts(
        facts=BundleFacts(
            name="ocr",
            version="1.2.0",
            release=7,
            created_at="2026-01-01T00:00:00Z",
            source_sha256="cd" * 32,
            tools={"onnx": "1.23"},
            files=(),
        ),
        variants=(_variant(tmp_path / ".work" / "__pycache__" / "cpu"),),
        golden=_GOLDEN,
        hooks=hooks,
    )
    folder = tmp_path / "bundle"
    folder.mkdir()
    laid_out = lay_out(folder, parts)
    record = make_record(facts=parts.facts, variants=laid_out.variants)
    digest = finish(folder, parts, laid_out, make_report(), record, key)
    verified = verify_folder(folder, [key.public_key()])
    assert verified.digest == digest
    origin = read_origin(read_documents(folder), verified.manifest)
    assert origin.bill is not None
    assert origin.provenance is not None
    return verified


def test_a_bundle_holds_every_file_of_a_variant_its_samples_and_the_reports(
    tmp_path: Path,
) -> None:
    verified = _assemble(tmp_path, hooks=None)
    assert set(verified.signed.files) == {
        "golden/golden.npz",
        "manifest.json",
        "ml-bom.cdx.json",
        "model/cpu/context/graph.bin",
        "model/cpu/model.onnx",
        "provenance.json",
        "report.html",
        "report.json",
    }
    assert verified.signed.name == "ocr-1.2.0"
    facts = verified.manifest.facts
    assert (facts.name, facts.version, facts.release) == ("ocr", "1.2.0", 7)
    assert read_golden(verified.folder / GOLDEN_FILE).inputs[0]["x"].tolist() == [1.0] * 3


def test_hooks_are_shipped_executable_and_without_what_editors_and_git_leave(
    tmp_path: Path,
) -> None:
    hooks = tmp_path / "hooks"
    for name in (
        "staged.before.d/look",
        "staged.before.d/.look.swp",
        "lib/__pycache__/shared.pyc",
        ".git/config",
        "lib/shared.sh",
    ):
        (hooks / name).parent.mkdir(parents=True, exist_ok=True)
        (hooks / name).write_text("#!/bin/sh\nexit 0\n")
        (hooks / name).chmod(0o755 if name.endswith("look") else 0o600)
    verified = _assemble(tmp_path, hooks)
    shipped = [name for name in verified.signed.files if name.startswith("hooks/")]
    assert shipped == ["hooks/lib/shared.sh", "hooks/staged.before.d/look"]
    assert {entry.path for entry in verified.manifest.facts.files} >= set(shipped)
    for name in shipped:
        assert (verified.folder / name).stat().st_mode & 0o777 == 0o755

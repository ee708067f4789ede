"""A bundle survives writing and reading, and the same inputs give the same bytes."""

import os
import tarfile
from pathlib import Path

from edgepack.bundle.archive import pack, read_head, unpack
from edgepack.bundle.forms import open_bundle
from edgepack.bundle.keys import PublicKey
from edgepack.bundle.manifest import decode_manifest, encode_manifest
from edgepack.bundle.verify import verify_folder


def test_a_packed_and_unpacked_bundle_verifies_and_is_the_same(
    bundle: Path, tmp_path: Path, public_key: PublicKey
) -> None:
    archive, again = tmp_path / "digits.edgepack", tmp_path / "again"
    pack(bundle, archive)
    unpack(archive, again)
    verified = verify_folder(again, [public_key])
    assert verified.manifest == decode_manifest((bundle / "manifest.json").read_bytes())
    assert verified.digest == verify_folder(bundle, [public_key]).digest
    for path in bundle.rglob("*"):
        if path.is_file():
            assert (again / path.relative_to(bundle)).read_bytes() == path.read_bytes()


def test_hooks_stay_executable_and_nothing_else_becomes_so(bundle: Path, tmp_path: Path) -> None:
    (bundle / "hooks/before-activate").chmod(0o600)
    (bundle / "report.json").chmod(0o777)
    pack(bundle, tmp_path / "digits.edgepack")
    unpack(tmp_path / "digits.edgepack", tmp_path / "again")
    assert os.access(tmp_path / "again/hooks/before-activate", os.X_OK)
    assert (tmp_path / "again/report.json").stat().st_mode & 0o777 == 0o644


def test_packing_twice_gives_the_same_bytes_whatever_the_times(
    bundle: Path, tmp_path: Path
) -> None:
    pack(bundle, tmp_path / "one.edgepack")
    os.utime(bundle / "report.json", (1, 1))
    pack(bundle, tmp_path / "two.edgepack")
    assert (tmp_path / "one.edgepack").read_bytes() == (tmp_path / "two.edgepack").read_bytes()


def test_an_archive_is_read_by_plain_tar(bundle: Path, tmp_path: Path) -> None:
    pack(bundle, tmp_path / "one.edgepack")
    with tarfile.open(tmp_path / "one.edgepack") as archive:
        names = archive.getnames()
    assert names[:2] == ["manifest.json", "model.sig"]
    assert names[2:] == sorted(names[2:], key=lambda name: name.split("/"))


def test_the_manifest_keeps_the_order_of_preference_and_its_bytes(bundle: Path) -> None:
    content = (bundle / "manifest.json").read_bytes()
    manifest = decode_manifest(content)
    assert [variant.name for variant in manifest.variants] == ["qnn-htp", "cpu"]
    assert encode_manifest(manifest) == content


def test_both_forms_open_as_a_folder_and_the_copy_is_removed(bundle: Path, tmp_path: Path) -> None:
    archive = tmp_path / "digits.edgepack"
    pack(bundle, archive)
    with open_bundle(bundle) as folder:
        assert folder == bundle
    with open_bundle(archive) as folder:
        assert (folder / "manifest.json").is_file()
    assert not folder.exists()


def test_the_head_of_an_archive_is_read_without_unpacking(bundle: Path, tmp_path: Path) -> None:
    pack(bundle, tmp_path / "digits.edgepack")
    head = read_head(tmp_path / "digits.edgepack")
    assert head.manifest_bytes == (bundle / "manifest.json").read_bytes()
    assert head.signature == (bundle / "model.sig").read_bytes()

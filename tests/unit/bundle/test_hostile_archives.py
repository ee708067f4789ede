"""Archives made to hurt are refused, say why, and leave nothing behind."""

import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from edgepack.bundle.archive import pack, unpack
from edgepack.bundle.forms import open_bundle
from edgepack.bundle.manifest import MAX_MANIFEST_BYTES
from edgepack.errors import BundleError

Entries = list[tuple[tarfile.TarInfo, bytes]]


def read_entries(archive: bytes) -> Entries:
    with tarfile.open(fileobj=io.BytesIO(archive)) as source:
        found = []
        for member in source.getmembers():
            content = source.extractfile(member)
            found.append((member, content.read() if content else b""))
    return found


def write_entries(entries: Entries, *, form: int = tarfile.USTAR_FORMAT) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=form) as archive:
        for member, content in entries:
            archive.addfile(member, io.BytesIO(content))
    return target.getvalue()


def new_entry(
    name: str, kind: bytes = tarfile.REGTYPE, content: bytes = b""
) -> tuple[tarfile.TarInfo, bytes]:
    member = tarfile.TarInfo(name)
    member.type = kind
    member.linkname = "manifest.json" if kind in (tarfile.SYMTYPE, tarfile.LNKTYPE) else ""
    member.size = len(content)
    return member, content


def index_of(entries: Entries, name: str) -> int:
    return [member.name for member, _ in entries].index(name)


def resize(entries: Entries, name: str, content: bytes) -> None:
    at = index_of(entries, name)
    entries[at][0].size = len(content)
    entries[at] = (entries[at][0], content)


@pytest.fixture
def archive(bundle: Path, tmp_path: Path) -> bytes:
    pack(bundle, tmp_path / "good.edgepack")
    return (tmp_path / "good.edgepack").read_bytes()


def refuse(content: bytes, tmp_path: Path, message: str) -> None:
    """Check that unpacking is rejected with that message and without traces."""
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "bad.edgepack").write_bytes(content)
    with pytest.raises(BundleError, match=message):
        unpack(folder / "bad.edgepack", folder / "bundle")
    assert [path.name for path in folder.iterdir()] == ["bad.edgepack"]


EXTRA: dict[str, tuple[tuple[tarfile.TarInfo, bytes], str]] = {
    "a symbolic link": (new_entry("model/cpu/x", tarfile.SYMTYPE), "is a symbolic link"),
    "a hard link": (new_entry("model/cpu/x", tarfile.LNKTYPE), "is a hard link"),
    "a character device": (new_entry("null", tarfile.CHRTYPE), "is a character device"),
    "a block device": (new_entry("sda", tarfile.BLKTYPE), "is a block device"),
    "a named pipe": (new_entry("pipe", tarfile.FIFOTYPE), "is a named pipe"),
    "a directory": (new_entry("model", tarfile.DIRTYPE), "is a directory"),
    "a sparse file": (new_entry("sparse", tarfile.GNUTYPE_SPARSE), "unknown type b'S'"),
    "an absolute name": (new_entry("/etc/cron.d/evil"), "is absolute"),
    "a way out": (new_entry("model/../../evil"), r"leads out of its folder"),
    "a backslash": (new_entry("model\\evil"), "has a backslash"),
    "an escape sequence": (new_entry("model/\x1b[2J"), "has a control character"),
    "another spelling": (new_entry("./report.json"), "not the only spelling"),
    "a git file": (new_entry(".git/hooks/evil"), "leaves unsigned"),
    "an unknown file": (new_entry("evil.sh"), r"'evil.sh' is not in the manifest"),
    "a file twice": (new_entry("report.json", content=b"{}"), r"'report.json' is twice"),
    "a second manifest": (new_entry("manifest.json"), r"'manifest.json' is twice"),
    "a second signature": (new_entry("model.sig"), r"'model.sig' is twice"),
}


@pytest.mark.parametrize("case", EXTRA)
def test_an_archive_is_refused_that_has(case: str, archive: bytes, tmp_path: Path) -> None:
    entry, message = EXTRA[case]
    refuse(write_entries([*read_entries(archive), entry]), tmp_path, message)


def test_a_name_that_is_not_utf_8_is_refused(archive: bytes, tmp_path: Path) -> None:
    entries = [*read_entries(archive), new_entry("evil\udcff")]
    refuse(write_entries(entries), tmp_path, "is not UTF-8")


@pytest.mark.parametrize("size", [0, 1, 3, 10_000_000])
def test_a_size_other_than_the_manifests_is_refused(
    archive: bytes, tmp_path: Path, size: int
) -> None:
    entries = read_entries(archive)
    resize(entries, "report.json", bytes(size))
    refuse(write_entries(entries), tmp_path, rf"'report.json' has {size} bytes.* says 2")


def test_a_size_that_only_the_header_claims_is_refused(archive: bytes, tmp_path: Path) -> None:
    entries = read_entries(archive)
    member = entries[-1][0]
    before = member.tobuf(tarfile.USTAR_FORMAT)
    member.size = 8**11 - 1
    refuse(archive.replace(before, member.tobuf(tarfile.USTAR_FORMAT)), tmp_path, "has 8589934591")


def test_a_huge_manifest_is_refused_before_it_is_read(archive: bytes, tmp_path: Path) -> None:
    entries = read_entries(archive)
    resize(entries, "manifest.json", b" " * (MAX_MANIFEST_BYTES + 1))
    refuse(write_entries(entries), tmp_path, r"'manifest.json' has .* at most")


def test_changed_content_is_refused_by_name(archive: bytes, tmp_path: Path) -> None:
    entries = read_entries(archive)
    resize(entries, "model/cpu/model.onnx", b"FLOAT MODEL")
    refuse(write_entries(entries), tmp_path, r"'model/cpu/model.onnx' is damaged")


def test_a_missing_file_is_refused_by_name(archive: bytes, tmp_path: Path) -> None:
    entries = read_entries(archive)
    del entries[index_of(entries, "model/cpu/weights.bin")]
    refuse(write_entries(entries), tmp_path, r"lacks 'model/cpu/weights.bin'")


def test_the_manifest_must_come_first_and_the_signature_second(
    archive: bytes, tmp_path: Path
) -> None:
    entries = read_entries(archive)
    refuse(write_entries(entries[1:]), tmp_path, r"first file of the archive is not 'manifest")
    (tmp_path / "second").mkdir()
    del entries[1]
    refuse(write_entries(entries), tmp_path / "second", r"second file of the archive is not 'model")


@pytest.mark.parametrize(
    ("form", "message"),
    [(tarfile.GNU_FORMAT, "not a POSIX"), (tarfile.PAX_FORMAT, "is a pax header")],
)
def test_extensions_of_the_tar_format_are_refused(
    archive: bytes, tmp_path: Path, form: int, message: str
) -> None:
    entries = read_entries(archive)
    for member, _ in entries:
        member.pax_headers = {"comment": "x"}
    refuse(write_entries(entries, form=form), tmp_path, message)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.1, 0.5, 0.9, 0.9999])
def test_a_truncated_archive_is_refused(archive: bytes, tmp_path: Path, share: float) -> None:
    refuse(archive[: int(len(archive) * share)], tmp_path, "truncated|too short")


def test_an_archive_without_its_end_marker_is_refused(archive: bytes, tmp_path: Path) -> None:
    refuse(archive.rstrip(b"\0") + bytes(510), tmp_path, "truncated")


@pytest.mark.parametrize("rest", [b"x", bytes(512), bytes(10240), b"PK\x03\x04"])
def test_anything_behind_the_end_is_refused(archive: bytes, tmp_path: Path, rest: bytes) -> None:
    refuse(archive + rest, tmp_path, "something follows the end")


def test_something_hidden_in_the_end_marker_is_refused(archive: bytes, tmp_path: Path) -> None:
    refuse(archive[:-1] + b"x", tmp_path, "something follows the end")


def test_something_hidden_in_the_padding_is_refused(archive: bytes, tmp_path: Path) -> None:
    at = archive.index(b"#!/bin/sh\nexit 0\n") + 20
    refuse(archive[:at] + b"x" + archive[at + 1 :], tmp_path, "after 'hooks/before-activate'")


@pytest.mark.parametrize(
    "content", [b"", b"PK\x03\x04" + bytes(1000), b"\x1f\x8b" + bytes(1000), bytes(10240)]
)
def test_what_is_no_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    refuse(content, tmp_path, "not a bundle|not 'manifest.json'")


def test_a_damaged_header_is_refused_with_its_place(archive: bytes, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (tmp_path / "bad.edgepack").write_bytes(b"x" + archive[1:])
    with pytest.raises(BundleError, match="damaged") as caught:
        unpack(tmp_path / "bad.edgepack", folder / "bundle")
    assert caught.value.found_in == "bad.edgepack, byte 0"


def test_an_existing_folder_is_never_written_to(bundle: Path, archive: bytes) -> None:
    with pytest.raises(BundleError, match="exists already"):
        unpack(bundle.parent / "good.edgepack", bundle)


def test_a_full_disk_is_an_error_with_its_reason_and_leaves_nothing(
    archive: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    refuse(archive, tmp_path, "cannot unpack: No space left on device")


def test_what_is_not_there_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="no such bundle"), open_bundle(tmp_path / "none"):
        pass


BROKEN_FOLDERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a file that is not in the manifest": (
        lambda folder: (folder / "stray").write_bytes(b""),
        "'stray' is not in the manifest",
    ),
    "a file of another size": (
        lambda folder: (folder / "report.json").write_bytes(b"longer"),
        "has 6 bytes, the manifest says 2",
    ),
    "no signature": (lambda folder: (folder / "model.sig").unlink(), r"no 'model.sig'"),
    "a missing file": (lambda folder: (folder / "report.json").unlink(), r"report\.json"),
    "a link": (lambda folder: (folder / "link").symlink_to("/etc"), "symbolic link"),
}


@pytest.mark.parametrize("case", BROKEN_FOLDERS)
def test_packing_refuses_a_folder_with(case: str, bundle: Path, tmp_path: Path) -> None:
    change, message = BROKEN_FOLDERS[case]
    change(bundle)
    with pytest.raises(BundleError, match=message):
        pack(bundle, tmp_path / "bad.edgepack")
    assert not (tmp_path / "bad.edgepack").exists()
    assert [path.name for path in tmp_path.iterdir()] == [bundle.name]

"""Any input bytes cause only `BundleError`, and no file is left behind."""

import contextlib
import hashlib
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepack.bundle.archive import pack, unpack
from edgepack.bundle.golden import read_golden
from edgepack.bundle.keys import PublicKey
from edgepack.bundle.manifest import Manifest, decode_manifest, encode_manifest
from edgepack.bundle.signature import verify_envelope
from edgepack.errors import BundleError

FUZZ = settings(max_examples=150)
MUTATIONS = st.lists(
    st.tuples(st.floats(0, 1, exclude_max=True), st.sampled_from("sdi"), st.binary(max_size=8)),
    min_size=1,
    max_size=4,
)
Mutations = list[tuple[float, str, bytes]]


def mutate(content: bytes, mutations: Mutations) -> bytes:
    """Set, delete or insert bytes at places given as shares of the length."""
    changed = bytearray(content)
    for share, action, new in mutations:
        at = int(share * len(changed))
        if action == "s":
            changed[at : at + len(new)] = new
        elif action == "d":
            del changed[at : at + len(new)]
        else:
            changed[at:at] = new
    return bytes(changed)


def try_manifest(content: bytes) -> None:
    try:
        manifest = decode_manifest(content)
    except BundleError:
        return
    assert isinstance(manifest, Manifest)
    assert decode_manifest(encode_manifest(manifest)) == manifest


@FUZZ
@given(content=st.binary(max_size=400) | st.text().map(str.encode))
def test_any_bytes_as_manifest(content: bytes) -> None:
    try_manifest(content)


@FUZZ
@given(mutations=MUTATIONS)
def test_a_mutated_manifest(bundle: Path, mutations: Mutations) -> None:
    try_manifest(mutate((bundle / "manifest.json").read_bytes(), mutations))


@FUZZ
@given(content=st.binary(max_size=400))
def test_any_bytes_as_signature(public_key: PublicKey, content: bytes) -> None:
    with pytest.raises(BundleError):
        verify_envelope(content, [public_key])


@FUZZ
@given(mutations=MUTATIONS)
def test_a_mutated_signature_never_yields_another_list(
    bundle: Path, public_key: PublicKey, mutations: Mutations
) -> None:
    content = (bundle / "model.sig").read_bytes()
    expected = verify_envelope(content, [public_key])
    with contextlib.suppress(BundleError):
        assert verify_envelope(mutate(content, mutations), [public_key]) == expected


def try_unpack(content: bytes, digests: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        archive, target = Path(folder, "a.edgepack"), Path(folder, "out")
        archive.write_bytes(content)
        try:
            unpack(archive, target)
        except BundleError:
            assert [path.name for path in Path(folder).iterdir()] == ["a.edgepack"]
            return
        found = {
            path.relative_to(target).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in target.rglob("*")
            if path.is_file()
        }
        for name in digests.keys() - {"manifest.json", "model.sig"}:
            assert found[name] == digests[name]


@FUZZ
@given(content=st.binary(max_size=3000))
def test_any_bytes_as_archive(content: bytes) -> None:
    try_unpack(content, {})


@settings(max_examples=100)
@given(mutations=MUTATIONS, is_head=st.booleans())
def test_a_mutated_archive_unpacks_to_the_same_files_or_not_at_all(
    bundle: Path, mutations: Mutations, is_head: bool
) -> None:
    archive = bundle.parent / "good.edgepack"
    if not archive.exists():
        pack(bundle, archive)
    content = archive.read_bytes()
    if is_head:
        mutations = [(share * 0.05, action, new) for share, action, new in mutations]
    digests = {
        path.relative_to(bundle).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in bundle.rglob("*")
        if path.is_file()
    }
    try_unpack(mutate(content, mutations), digests)


@FUZZ
@given(mutations=MUTATIONS)
def test_mutated_golden_samples(bundle: Path, mutations: Mutations) -> None:
    path = bundle / "mutated.npz"
    shutil.copyfile(bundle / "golden/golden.npz", path)
    path.write_bytes(mutate(path.read_bytes(), mutations))
    with contextlib.suppress(BundleError):
        assert read_golden(path).inputs

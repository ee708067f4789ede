"""Deltas from older bundles in a bundle, if a delta saves a device enough.

A changed chunk follows from the chunk that lay as far behind the start of the same tensor before.
"""

import hashlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import starmap
from pathlib import Path
from typing import NamedTuple

import msgspec

from edgepack.bundle.chunks import chunk_digests, entry, offsets
from edgepack.bundle.deltas import MAGIC, DeltaRecord, delta_path, pack_difference
from edgepack.bundle.forms import digest_of_folder, open_bundle, read_manifest
from edgepack.bundle.manifest import ChunkIndex, FileEntry, Manifest, Variant
from edgepack.durable import write_file
from edgepack.errors import BuildError
from edgepack.packager.graph.tensor_offsets import tensor_starts

WORTH_SHARE = 0.75
"""A delta takes at most this share of the chunks that a device lacks without it."""


class WrittenDelta(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a variant's delta.

    Attributes:
        base: The older bundle, in words.
        variant: The variant.
        lacking_bytes: Of the chunks that a device with the older bundle lacks.
        sent_bytes: Bytes of the delta and of the chunks still missing then; equal to
            `lacking_bytes` for a worthless delta.
        file: The delta, None if worthless.
    """

    base: str
    variant: str
    lacking_bytes: int
    sent_bytes: int
    file: FileEntry | None

    def __str__(self) -> str:
        """Return a summary: `cpu from ocr 1.2.0: 12345 bytes instead of 123456`."""
        title = f"{self.variant} from {self.base}"
        if self.file is None:
            return f"{title}: none, {self.lacking_bytes} bytes of chunks do not get much shorter"
        return f"{title}: {self.sent_bytes} bytes instead of {self.lacking_bytes}"


def check_older(older: Sequence[Path], name: str, *, is_encrypted: bool) -> None:
    """Reject older bundles that cannot serve as a base of a delta, before the build.

    Args:
        older: Older bundles.
        name: The model.
        is_encrypted: Whether the new bundle will be.

    Raises:
        BundleError: An older bundle is damaged.
        BuildError: An older bundle is of another model, or a bundle is encrypted.
    """
    if older and is_encrypted:
        raise BuildError(
            "no delta leads to an encrypted bundle: no two encryptions have a byte in common",
            remedy="leave out --delta-from, or --encrypt-to",
        )
    for path in older:
        with open_bundle(path) as opened:
            _check(read_manifest(opened), name, path)


def write_deltas(
    folder: Path, name: str, variants: Sequence[Variant], older: Path
) -> Iterator[WrittenDelta]:
    """Write the deltas from an older bundle; variants are matched by name.

    Args:
        folder: The new bundle, laid out and not encrypted.
        name: Its model.
        variants: Its variants.
        older: The older bundle, in either form. The bundle is trusted: its content decides the
            length of a delta, and never the installed result.

    Raises:
        BundleError: The older bundle is damaged.
        BuildError: The older bundle is of another model, or encrypted.
        OSError: The disk is full.
    """
    with open_bundle(older) as opened:
        manifest = read_manifest(opened)
        _check(manifest, name, older)
        base = digest_of_folder(opened, manifest)
        known = {variant.name: variant for variant in manifest.variants}
        title = f"{name} {manifest.facts.version}"
        for variant in variants:
            if variant.name in known:
                before = known[variant.name]
                yield _write(folder, opened, variant, before, delta_path(base, variant.name), title)


def _check(manifest: Manifest, name: str, older: Path) -> None:
    if manifest.facts.name != name:
        raise BuildError(
            f"a delta is from an older bundle of '{name}', this one is of '{manifest.facts.name}'",
            found_in=str(older),
        )
    if manifest.facts.encryption is not None:
        raise BuildError("no delta leads from an encrypted bundle", found_in=str(older))


def _write(
    folder: Path, opened: Path, variant: Variant, before: Variant, path: str, title: str
) -> WrittenDelta:
    olds = {file.path: file for file in before.facts.files}
    there = {digest for file in olds.values() for digest in chunk_digests(file.chunks)}
    starts, old_starts = (
        tensor_starts(folder / variant.folder),
        tensor_starts(opened / variant.folder),
    )
    content = bytearray(MAGIC)
    lacking = spared = 0
    for file in variant.facts.files:
        inner = file.path.removeprefix(f"{variant.folder}/")
        chunks = _changed(
            file, olds.get(file.path), starts.get(inner, {}), old_starts.get(inner, {}), there
        )
        for chunk, base in chunks:
            lacking += chunk.size
            if base is None:
                continue
            encoded = _record(folder / file.path, chunk, opened / file.path, base).encode()
            if len(encoded) < WORTH_SHARE * chunk.size:
                content += encoded
                spared += chunk.size
    sent = lacking - spared + len(content)
    is_worth = spared > 0 and sent <= WORTH_SHARE * lacking
    if is_worth:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        write_file(folder / path, bytes(content), lasting=False)
    return WrittenDelta(
        base=title,
        variant=variant.name,
        lacking_bytes=lacking,
        sent_bytes=sent if is_worth else lacking,
        file=entry(folder, path) if is_worth else None,
    )


class _Chunk(NamedTuple):
    """A chunk of a file.

    Attributes:
        digest: Its SHA-256 digest.
        start: Offset in its file, bytes.
        size: Its length, bytes.
    """

    digest: bytes
    start: int
    size: int

    def read(self, path: Path) -> bytes:
        """Return its bytes, of its file."""
        with path.open("rb") as file:
            file.seek(self.start)
            return file.read(self.size)


def _chunks(index: ChunkIndex) -> Iterator[_Chunk]:
    return starmap(_Chunk, zip(chunk_digests(index), offsets(index), index.sizes, strict=True))


def _changed(
    file: FileEntry,
    old: FileEntry | None,
    starts: dict[str, int],
    old_starts: dict[str, int],
    there: set[bytes],
) -> Iterator[tuple[_Chunk, _Chunk | None]]:
    """Yield each missing chunk, and the old chunk in its place."""
    places = {chunk.start: chunk for chunk in _chunks(old.chunks)} if old else {}
    anchors = sorted([(0, ""), *((start, name) for name, start in starts.items())])
    before = {"": 0, **old_starts}
    for chunk in _chunks(file.chunks):
        if chunk.digest in there:
            continue
        there.add(chunk.digest)
        start, name = anchors[bisect_right(anchors, (chunk.start, "\U0010ffff")) - 1]
        yield chunk, places.get(before[name] + chunk.start - start) if name in before else None


def _record(path: Path, chunk: _Chunk, old_path: Path, old: _Chunk) -> DeltaRecord:
    new_bytes = chunk.read(path)
    old_bytes = old.read(old_path)
    if hashlib.sha256(old_bytes).digest() != old.digest:
        raise BuildError("the older bundle is damaged", found_in=str(old_path))
    width, packed = pack_difference(new_bytes, old_bytes)
    return DeltaRecord(
        new=chunk.digest, old=old.digest, size_bytes=chunk.size, width=width, packed=packed
    )

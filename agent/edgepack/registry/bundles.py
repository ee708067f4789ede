"""Transfers of bundles, all or nothing: to a registry, from a registry or a web server."""

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import BinaryIO

import msgspec

from edgepack.bundle.archive import pack
from edgepack.bundle.chunks import digest_file
from edgepack.bundle.envelope import MAX_SIGNATURE_BYTES
from edgepack.bundle.forms import open_bundle, read_manifest
from edgepack.bundle.keys import PublicKey
from edgepack.bundle.manifest import (
    MANIFEST_FILE,
    MAX_MANIFEST_BYTES,
    SIGNATURE_FILE,
    Manifest,
    decode_manifest,
)
from edgepack.bundle.shared_files import is_executable
from edgepack.bundle.signature import root_digest, verify_envelope
from edgepack.bundle.verify import verify_folder, verify_manifest
from edgepack.durable import flush_folder
from edgepack.errors import BundleError, TransferError
from edgepack.registry.archives import pull_archive
from edgepack.registry.artifact import (
    EMPTY,
    Descriptor,
    check_artifact,
    make_artifact,
    read_artifact,
)
from edgepack.registry.client import Registry, digest_of
from edgepack.registry.reference import SCHEME, Reference, read_reference
from edgepack.registry.way import DIRECTLY, Progress, Way, check_room

ARCHIVE_SUFFIX = ".edgepack"


class Pushed(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a push.

    Attributes:
        reference: Where the bundle is, by the digest of its artifact.
        digest: Root digest of the bundle.
        sent_bytes, size_bytes: Sent bytes, and size of the bundle.
    """

    reference: str
    digest: str
    sent_bytes: int
    size_bytes: int


class Pulled(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a pull.

    Attributes:
        reference: Where the bundle was, by the digest of its artifact; a web server's URL.
        name, version, release: Of the bundle.
        digest: Its root digest.
        size_bytes: Length of its files.
        verified: Whether a key was given, and had signed the bundle.
        path: Place of the bundle.
    """

    reference: str
    name: str
    version: str
    release: int
    digest: str
    size_bytes: int
    verified: bool
    path: str


def push(
    bundle: Path, target: str, way: Way = DIRECTLY, progress: Progress = lambda _done, _all: None
) -> Pushed:
    """Send a bundle to a registry; files present in the registry are not sent again.

    Args:
        bundle: A folder or an archive.
        target: `oci://host/repository:tag`.
        way: How to get there.
        progress: Called with the progress.

    Raises:
        TransferError: The registry cannot be reached, or rejects the bundle.
        BundleError: The path is not a bundle, or its files do not match its manifest.
    """
    reference = read_reference(target)
    with open_bundle(bundle) as folder, _registry(reference, way) as registry:
        manifest = read_manifest(folder)
        files = bundle_files(folder, manifest)
        total = sum(size for _, size in files.values())
        done = sent = 0
        if not registry.has_blob(digest_of(EMPTY)):
            registry.write_blob(digest_of(EMPTY), EMPTY)
        for path, (sha256, size_bytes) in files.items():
            digest = f"sha256:{sha256}"
            if not registry.has_blob(digest):
                registry.write_blob(digest, folder / path)
                sent += size_bytes
            done += size_bytes
            progress(done, total)
        digests = {path: sha256 for path, (sha256, _) in files.items() if path != SIGNATURE_FILE}
        root = root_digest(digests)
        artifact = make_artifact(manifest, root, files)
        registry.write_manifest(reference.name, artifact)
    where = msgspec.structs.replace(reference, digest=digest_of(artifact))
    return Pushed(reference=str(where), digest=root, sent_bytes=sent, size_bytes=total)


def pull(
    source: str,
    output: Path,
    keys: Sequence[PublicKey] = (),
    way: Way = DIRECTLY,
    progress: Progress = lambda _done, _all: None,
    most_bytes: int | None = None,
) -> Pulled:
    """Take a bundle from a registry, or an archive from a web server.

    1. Manifest and signature come first, and are bounded; with keys, any key has signed the bundle.
    2. The registry has exactly the files of the manifest, and the disk has free space for all
      files.
    3. Each file matches the manifest; with keys, the whole bundle is verified once more.

    Args:
        source: `oci://…`, or an `https://` URL of an archive.
        output: A folder, or an archive if the name ends in `.edgepack`; must not exist.
        keys: Trusted keys; without keys, nothing vouches for the bundle.
        way: How to get there.
        progress: Called with the progress; its exception ends the pull.
        most_bytes: Limit of all files together; None is the free space.

    Raises:
        TransferError: The source cannot be reached, or the bundle is missing, invalid or too long.
        BundleError: The bundle is not signed by a given key, hostile, or cannot be written.
    """
    if os.path.lexists(output):
        raise BundleError(
            f"'{output}' exists already", found_in=str(output), remedy="choose another with -o"
        )
    parent = output.resolve().parent
    try:
        temporary = Path(tempfile.mkdtemp(prefix=f".{output.name}.", dir=parent))
    except OSError as error:
        raise BundleError(f"cannot write: {error.strerror}", found_in=str(parent)) from error
    try:
        folder = temporary / "bundle"
        if source.startswith(SCHEME):
            reference = read_reference(source)
            where = _pull_artifact(reference, folder, keys, way, progress, most_bytes)
        else:
            where = pull_archive(source, folder, way, progress, most_bytes)
        # 3
        if keys:
            verify_folder(folder, keys)
        manifest = read_manifest(folder)
        files = bundle_files(folder, manifest)
        if output.suffix == ARCHIVE_SUFFIX:
            pack(folder, output)
        else:
            folder.rename(output)
            flush_folder(parent)
    except OSError as error:
        said = error.strerror or str(error)
        raise BundleError(f"cannot write: {said}", found_in=str(parent)) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    facts = manifest.facts
    return Pulled(
        reference=where,
        name=facts.name,
        version=facts.version,
        release=facts.release,
        digest=root_digest({p: sha for p, (sha, _) in files.items() if p != SIGNATURE_FILE}),
        size_bytes=sum(size for _, size in files.values()),
        verified=bool(keys),
        path=str(output),
    )


@contextmanager
def _registry(reference: Reference, way: Way) -> Iterator[Registry]:
    with closing(Registry(reference, access=way.access, http_unsafe=way.http_unsafe)) as registry:
        yield registry


def bundle_files(folder: Path, manifest: Manifest) -> dict[str, tuple[str, int]]:
    """Return digest and length of each file of a bundle by path, held against its manifest.

    Raises:
        BundleError: A file is missing or differs.
    """
    found = {}
    for name in (MANIFEST_FILE, SIGNATURE_FILE):
        found[name] = (digest_file(folder / name), (folder / name).stat().st_size)
    for entry in manifest.files:
        sha256, size_bytes = digest_file(folder / entry.path), (folder / entry.path).stat().st_size
        if (sha256, size_bytes) != (entry.sha256, entry.size_bytes):
            raise BundleError(
                f"'{entry.path}' is not what the manifest says", found_in=str(folder / entry.path)
            )
        found[entry.path] = (sha256, size_bytes)
    return found


def _pull_artifact(
    reference: Reference,
    folder: Path,
    keys: Sequence[PublicKey],
    way: Way,
    progress: Progress,
    most_bytes: int | None,
) -> str:
    with _registry(reference, way) as registry:
        # 1
        artifact = registry.read_manifest(reference.name)
        blobs = read_artifact(artifact, found_in=str(reference))
        head = {
            name: _read_small(registry, blobs[name], name, most_bytes, reference)
            for name, most_bytes in (
                (MANIFEST_FILE, MAX_MANIFEST_BYTES),
                (SIGNATURE_FILE, MAX_SIGNATURE_BYTES),
            )
        }
        if keys:
            verify_manifest(head[MANIFEST_FILE], verify_envelope(head[SIGNATURE_FILE], keys))
        manifest = decode_manifest(head[MANIFEST_FILE])
        # 2
        check_artifact(blobs, manifest, found_in=str(reference))
        total = sum(entry.size_bytes for entry in manifest.files)
        if most_bytes is not None and total > most_bytes:
            raise TransferError(
                f"the bundle has {total} bytes, and {most_bytes} were expected",
                found_in=str(reference),
            )
        check_room(folder.parent, total)
        folder.mkdir()
        for name, content in head.items():
            (folder / name).write_bytes(content)
        # 3
        done = 0
        for entry in manifest.files:
            path = folder / entry.path
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as file:

                def take(piece: bytes, file: BinaryIO = file, before: int = done) -> None:
                    file.write(piece)
                    progress(before + file.tell(), total)

                registry.read_blob(f"sha256:{entry.sha256}", entry.size_bytes, take)
                file.flush()
                os.fsync(file.fileno())
            path.chmod(0o755 if is_executable(entry.path) else 0o644)
            done += entry.size_bytes
    return str(msgspec.structs.replace(reference, digest=digest_of(artifact)))


def _read_small(
    registry: Registry, blob: Descriptor, name: str, most_bytes: int, reference: Reference
) -> bytes:
    if not 0 < blob.size <= most_bytes:
        raise TransferError(
            f"'{name}' has {blob.size} bytes, at most {most_bytes} are read",
            found_in=str(reference),
        )
    content = bytearray()
    registry.read_blob(blob.digest, blob.size, content.extend)
    return bytes(content)

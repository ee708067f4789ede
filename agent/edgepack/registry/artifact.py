"""A bundle as an OCI artifact: a manifest that names each of its files as a blob.

Each file is a blob, under the digest of the signed manifest. So two releases share equal files, and
a device can take single chunks of a blob.
"""

import msgspec

from edgepack.bundle.manifest import MANIFEST_FILE, SIGNATURE_FILE, Manifest
from edgepack.decoding import decode_json
from edgepack.errors import TransferError, parse_problem
from edgepack.registry.client import MANIFEST_TYPE, digest_of

ARTIFACT_TYPE = "application/vnd.edgepack.bundle.v1"
FILE_TYPE = "application/vnd.edgepack.bundle.file.v1"
EMPTY_TYPE, EMPTY = "application/vnd.oci.empty.v1+json", b"{}"
TITLE = "org.opencontainers.image.title"
VERSION = "org.opencontainers.image.version"
ROOT_DIGEST = "dev.edgepack.bundle.digest"


class Descriptor(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A blob's entry in manifests."""

    media_type: str
    digest: str
    size: int
    annotations: dict[str, str] = {}


class ArtifactManifest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An OCI image manifest, version 1.1, of an artifact."""

    schema_version: int = 2
    media_type: str = MANIFEST_TYPE
    artifact_type: str = ""
    config: Descriptor
    layers: tuple[Descriptor, ...]
    annotations: dict[str, str] = {}


def make_artifact(manifest: Manifest, root_digest: str, files: dict[str, tuple[str, int]]) -> bytes:
    """Return the artifact's manifest; the same bundle gives the same bytes.

    Args:
        manifest: Of the bundle.
        root_digest: Digest of the bundle.
        files: Digest and length of each of its files by path, manifest and signature too.
    """
    facts = manifest.facts
    layers = tuple(
        Descriptor(
            media_type=FILE_TYPE,
            digest=f"sha256:{sha256}",
            size=size_bytes,
            annotations={TITLE: path},
        )
        for path, (sha256, size_bytes) in files.items()
    )
    return msgspec.json.encode(
        ArtifactManifest(
            artifact_type=ARTIFACT_TYPE,
            config=Descriptor(media_type=EMPTY_TYPE, digest=digest_of(EMPTY), size=len(EMPTY)),
            layers=layers,
            annotations={TITLE: facts.name, VERSION: facts.version, ROOT_DIGEST: root_digest},
        )
    )


def read_artifact(content: bytes, *, found_in: str) -> dict[str, Descriptor]:
    """Return the blobs of a bundle, by path, without verification.

    Raises:
        TransferError: The content is not an artifact of a bundle, or names a file twice or no file.
    """
    try:
        manifest = decode_json(content, ArtifactManifest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TransferError(
            f"the registry's content of this name is not an artifact: {parse_problem(error)}",
            found_in=found_in,
        ) from error
    if manifest.artifact_type != ARTIFACT_TYPE:
        kind = manifest.artifact_type or manifest.config.media_type
        raise TransferError(
            f"the registry's content of this name is not a bundle, but {kind[:100]!a}",
            found_in=found_in,
        )
    found: dict[str, Descriptor] = {}
    for layer in manifest.layers:
        path = layer.annotations.get(TITLE, "")
        if path in found:
            raise TransferError(f"{path!a} is twice in the artifact", found_in=found_in)
        found[path] = layer
    for path in (MANIFEST_FILE, SIGNATURE_FILE):
        if path not in found:
            raise TransferError(f"the artifact lacks '{path}'", found_in=found_in)
    return found


def check_artifact(blobs: dict[str, Descriptor], manifest: Manifest, *, found_in: str) -> None:
    """Reject an artifact with files other than the bundle's own manifest.

    Raises:
        TransferError: A file is missing, surplus, or differs.
    """
    wanted = {entry.path: (f"sha256:{entry.sha256}", entry.size_bytes) for entry in manifest.files}
    given = {
        path: (blob.digest, blob.size)
        for path, blob in blobs.items()
        if path not in (MANIFEST_FILE, SIGNATURE_FILE)
    }
    for path in sorted(wanted.keys() | given.keys()):
        if wanted.get(path) != given.get(path):
            what = "lacks" if path not in given else "has another" if path in wanted else "adds"
            raise TransferError(f"the artifact {what} {path[:200]!a}", found_in=found_in)

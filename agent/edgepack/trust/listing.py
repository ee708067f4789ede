"""A release in the image repository: a TUF target.

Its path is `MODEL/DIGEST`, and its hash is the bundle's root digest. The file of that hash is the
list of the digests of all files of the bundle (32 bytes each, in the order of their paths), from
which every byte of the bundle follows: that is the target which stock clients fetch.
"""

import re
from typing import Any

import msgspec
from tuf.api.metadata import TargetFile

from edgepack.bundle.manifest import Manifest
from edgepack.bundle.metadata import Name, Release, Sha256, Text
from edgepack.decoding import convert_value, decode_json
from edgepack.errors import TrustError
from edgepack.wire.orders import BundleRef

_DIGEST_BYTES = 32
_PATH = re.compile(r"([A-Za-z0-9_][A-Za-z0-9._-]{0,99})/([0-9a-f]{64})")
_MAX_ARCHITECTURES = 16


class ListedRelease(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of a release in the repository besides its digest (`custom` of the target).

    Attributes:
        name, version, release, digest: The bundle.
        arch: Machine names (`x86_64`, `aarch64`) of the release's variants; empty if a variant is
            for any machine.
    """

    name: Name
    version: Text
    release: Release
    digest: Sha256
    arch: tuple[str, ...] = ()

    @property
    def bundle(self) -> BundleRef:
        """The bundle."""
        return BundleRef(
            name=self.name, version=self.version, release=self.release, digest=self.digest
        )


def target_path(bundle: BundleRef) -> str:
    """Return the path of a bundle in the repository."""
    return f"{bundle.name}/{bundle.digest}"


def read_target_path(path: str) -> tuple[str, str] | None:
    """Return model and root digest of a path; None for a foreign path."""
    found = _PATH.fullmatch(path)
    return (found[1], found[2]) if found else None


def make_target(bundle: BundleRef, file_count: int, custom: dict[str, Any]) -> TargetFile:
    """Return the target of a bundle that has so many signed files."""
    return TargetFile(
        length=file_count * _DIGEST_BYTES,
        hashes={"sha256": bundle.digest},
        path=target_path(bundle),
        unrecognized_fields={"custom": custom},
    )


def list_release(bundle: BundleRef, manifest: Manifest) -> TargetFile:
    """Return the target that makes a bundle a release."""
    required = [variant.facts.requires.arch for variant in manifest.variants]
    arch = sorted(set().union(*required)) if all(required) else []
    listed = ListedRelease(
        name=bundle.name,
        version=bundle.version,
        release=bundle.release,
        digest=bundle.digest,
        arch=tuple(arch[:_MAX_ARCHITECTURES]) if len(arch) <= _MAX_ARCHITECTURES else (),
    )
    return make_target(bundle, len(manifest.files) + 1, decode_json(msgspec.json.encode(listed)))


def read_listing(target: TargetFile) -> ListedRelease:
    """Return the facts of a release in a target.

    Raises:
        TrustError: The target is not a release, or contradicts itself.
    """
    try:
        listed = convert_value(target.custom, ListedRelease)
    except msgspec.ValidationError as error:
        raise TrustError(f"the repository lists no release at {target.path[:120]!a}") from error
    if target.path != target_path(listed.bundle) or target.hashes != {"sha256": listed.digest}:
        raise TrustError(f"the repository contradicts itself about {target.path[:120]!a}")
    return listed

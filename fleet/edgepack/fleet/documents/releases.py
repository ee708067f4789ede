"""Releases, as the API accepts and returns releases."""

from collections import defaultdict
from collections.abc import Callable, Iterable

import msgspec

from edgepack.wire.orders import BundleRef

KEPT_RELEASES = 5
"""Of the newest of each model, so many are needed, whatever devices run."""


class ReleaseView(msgspec.Struct, frozen=True, kw_only=True):
    """A release that the fleet holds.

    Attributes:
        bundle: Its name, version, release counter and root digest.
        size_bytes: Size of its files together.
        added_at: Time of publication here, seconds since the epoch (UTC).
        is_listed: Whether the image repository lists the release, so that devices accept the
            release.
        source: Source URL for controllers without the files; "" if published as a file.
    """

    bundle: BundleRef
    size_bytes: int
    added_at: float
    is_listed: bool = True
    source: str = ""


class BundleHead(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The two files of a bundle with its contents and signature.

    Attributes:
        manifest: Bytes of `manifest.json`.
        signature: Bytes of `model.sig`.
    """

    manifest: bytes
    signature: bytes


class PublishingView(msgspec.Struct, frozen=True, kw_only=True):
    """Data for a publisher to sign or withdraw a release.

    Attributes:
        bundle: The release.
        role: The publisher's role that decides about its model.
        keys: Ids of the keys of that role.
        threshold: Number of signatures required.
        is_listed: Whether the image repository lists the release.
        metadata: Metadata of the role; "" without any.
        pending: Its next metadata, which fewer keys have signed than must; "" when there is none.
    """

    bundle: BundleRef
    role: str
    keys: tuple[str, ...]
    threshold: int
    is_listed: bool
    metadata: str = ""
    pending: str = ""


class SignedMetadata(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Metadata that a publisher signed.

    Attributes:
        role: The publisher's role.
        metadata: The file's content.
    """

    role: str
    metadata: str


class MetadataBundle(msgspec.Struct, frozen=True, kw_only=True):
    """Metadata that a device may lack.

    Attributes:
        files: Contents, by name: every root, and the newest of all else.
    """

    files: dict[str, bytes]


class PublishedMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """Result of publishing signed metadata.

    Attributes:
        role: The publisher's role.
        version: Its version.
        signatures: Number of keys of the role that have signed.
        threshold: How many must.
        is_accepted: Whether the metadata is in force now; else other keys must sign.
    """

    role: str
    version: int
    signatures: int
    threshold: int
    is_accepted: bool


def title(bundle: BundleRef) -> str:
    """Return a bundle's title: `digits 1.2.0`."""
    return f"{bundle.name} {bundle.version}"


def full_title(bundle: BundleRef) -> str:
    """Return a bundle's unique title: `digits 1.2.0 (0123456789ab)`."""
    return f"{title(bundle)} ({bundle.digest[:12]})"


def tell_apart(bundles: Iterable[BundleRef]) -> Callable[[BundleRef], str]:
    """Return titles for bundles shown together: full titles where short titles are equal."""
    digests: dict[str, set[str]] = defaultdict(set)
    for bundle in bundles:
        digests[title(bundle)].add(bundle.digest)
    return lambda bundle: (full_title if len(digests[title(bundle)]) > 1 else title)(bundle)

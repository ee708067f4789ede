"""Releases, as the API takes and gives them."""

from collections import defaultdict
from collections.abc import Callable, Iterable

import msgspec

from edgepack.wire.messages import BundleRef

KEPT_RELEASES = 5
"""Of the newest of each model, so many are needed, whatever devices run."""


class ReleaseView(msgspec.Struct, frozen=True, kw_only=True):
    """A release that the fleet holds.

    Attributes:
        bundle: Its name, version, release counter and root digest.
        size_bytes: Size of its files together.
        added_at: When it was published here, seconds since the epoch (UTC).
        is_listed: Whether the image repository lists it, so that devices take it.
        source: Where a controller that lacks its files fetches it; "" where it was published as a
            file.
    """

    bundle: BundleRef
    size_bytes: int
    added_at: float
    is_listed: bool = True
    source: str = ""


class BundleHead(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The two files of a bundle that say, and prove, what it is.

    Attributes:
        manifest: Bytes of `manifest.json`.
        signature: Bytes of `model.sig`.
    """

    manifest: bytes
    signature: bytes


class PublishingView(msgspec.Struct, frozen=True, kw_only=True):
    """Data for a publisher to sign a release, or to end it.

    Attributes:
        bundle: The release.
        role: The publisher's role that decides about its model.
        keys: Ids of the keys of that role.
        threshold: How many of them must sign.
        is_listed: Whether the image repository lists it.
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
        role: Whose.
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
        role: Whose it is.
        version: Its version.
        signatures: How many keys of the role have signed it.
        threshold: How many must.
        is_accepted: Whether it holds now; else it waits for the other keys.
    """

    role: str
    version: int
    signatures: int
    threshold: int
    is_accepted: bool


def title(bundle: BundleRef) -> str:
    """Return a bundle as people call it: `digits 1.2.0`."""
    return f"{bundle.name} {bundle.version}"


def full_title(bundle: BundleRef) -> str:
    """Return the same with what tells it from every other: `digits 1.2.0 (0123456789ab)`."""
    return f"{title(bundle)} ({bundle.digest[:12]})"


def tell_apart(bundles: Iterable[BundleRef]) -> Callable[[BundleRef], str]:
    """Return titles for bundles that are shown together: full ones where two would read alike."""
    digests: dict[str, set[str]] = defaultdict(set)
    for bundle in bundles:
        digests[title(bundle)].add(bundle.digest)
    return lambda bundle: (full_title if len(digests[title(bundle)]) > 1 else title)(bundle)

"""Releases, as the API takes and gives them."""

from collections import defaultdict
from collections.abc import Callable, Iterable

import msgspec

from edgepack.wire.messages import BundleRef


class ReleaseView(msgspec.Struct, frozen=True, kw_only=True):
    """A release that the fleet holds.

    Attributes:
        bundle: Its name, version, release counter and root digest.
        size_bytes: Size of its files together.
        added_at: When it was published here, seconds since the epoch (UTC).
    """

    bundle: BundleRef
    size_bytes: int
    added_at: float


class BundleHead(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The two files of a bundle that say, and prove, what it is.

    Attributes:
        manifest: Bytes of `manifest.json`.
        signature: Bytes of `model.sig`.
    """

    manifest: bytes
    signature: bytes


def title(bundle: BundleRef) -> str:
    """A bundle as people call it: `digits 1.2.0`."""
    return f"{bundle.name} {bundle.version}"


def full_title(bundle: BundleRef) -> str:
    """The same with what tells it from every other: `digits 1.2.0 (0123456789ab)`."""
    return f"{title(bundle)} ({bundle.digest[:12]})"


def tell_apart(bundles: Iterable[BundleRef]) -> Callable[[BundleRef], str]:
    """Titles for bundles that are shown together: full ones where two would read alike."""
    digests: dict[str, set[str]] = defaultdict(set)
    for bundle in bundles:
        digests[title(bundle)].add(bundle.digest)
    return lambda bundle: (full_title if len(digests[title(bundle)]) > 1 else title)(bundle)

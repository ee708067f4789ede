"""Releases, as the API gives them."""

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

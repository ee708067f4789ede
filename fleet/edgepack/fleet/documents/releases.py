"""Releases, as the API gives them."""

import msgspec

from edgepack.wire.messages import BundleRef


class ReleaseView(msgspec.Struct, frozen=True, kw_only=True):
    """A release that the fleet holds."""

    bundle: BundleRef
    size_bytes: int
    added_at: float

"""Fetch of a release from its source, by a controller without the files."""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from edgepack.bundle.trust import TrustPolicy
from edgepack.errors import FleetError, TransferError
from edgepack.fleet.database.schema import ReleaseRow
from edgepack.fleet.documents.releases import full_title
from edgepack.fleet.releases.folder import ReleaseFolder
from edgepack.registry.reference import SCHEME, read_reference
from edgepack.web.deadline import WaitLimits
from edgepack.web.urls import shown_url

EXAMPLES = "oci://registry.example/models/m@sha256:…, or https://files.example/m-1.2.0.edgepack"
LIMITS = WaitLimits(least_bytes_per_s=32 * 1024)
"""A slower source loses its place after a minute of waiting, and is tried again later."""


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """A release without local files, as in the database.

    Attributes:
        digest: Its root digest.
        name: Of its model.
        title: Title for users.
        source: URL of the source; "" for none.
        most_bytes: Size of its files together.
    """

    digest: str
    name: str
    title: str
    source: str
    most_bytes: int


def wanted_of(row: ReleaseRow) -> Wanted:
    """Return the fetch request of a row of the database."""
    return Wanted(
        digest=row.digest,
        name=row.name,
        title=full_title(row.bundle),
        source=row.source,
        most_bytes=row.size_bytes + row.manifest_bytes + row.signature_bytes,
    )


def check_source(source: str) -> None:
    """Reject an invalid source, or a source that contains a secret.

    Raises:
        FleetError: The source is invalid.
    """
    if not source:
        return
    try:
        if source.startswith(SCHEME):
            is_good = bool(read_reference(source).digest)
        else:
            is_good = source.startswith(("https://", "http://")) and shown_url(source) == source
    except TransferError:
        is_good = False
    if not is_good:
        raise FleetError(
            f"{shown_url(source)!a} is not a place that the fleet can keep of a release",
            found_in="source",
            remedy=EXAMPLES,
        )


def fetch_release(
    wanted: Wanted,
    folder: ReleaseFolder,
    trust: TrustPolicy,
    is_stopping: Callable[[], bool],
    limits: WaitLimits = LIMITS,
) -> None:
    """Fetch all files of a release, or none.

    1. The release has a source.
    2. At most the recorded size is fetched, and from a registry only content of a manifest signed
       by a trusted key.
    3. Every byte is verified, and the root digest equals the recorded digest.
    4. The release is moved to its place in a single step.

    Args:
        wanted: The release.
        folder: Where releases lie.
        trust: Keys with valid signatures.
        is_stopping: Whether to stop.
        limits: Of the waits on the source.

    Raises:
        EdgepackError: The release cannot be fetched, or differs from the record.
        OSError: The release cannot be stored.
    """
    # 1.
    if not wanted.source and wanted.digest in folder.list_damaged():
        raise FleetError(
            folder.damage.get(wanted.digest) or "the controller's files are damaged",
            found_in=str(folder.root / wanted.digest),
            remedy="publish the same file again: edgepack publish FILE.edgepack",
        )
    if not wanted.source:
        raise FleetError(
            f"{wanted.title} was published as a file, so its files lie at another controller",
            found_in=str(folder.root / wanted.digest),
            remedy="publish it once more from where every controller can fetch it: "
            "edgepack publish oci://… or https://…",
        )
    # Loaded where it is needed: few fleets fetch anything.
    from edgepack.registry.bundles import pull
    from edgepack.registry.way import Way

    def go_on(_done_bytes: int, _all_bytes: int) -> None:
        if is_stopping():
            raise TransferError("the controller stops")

    temporary = Path(tempfile.mkdtemp(prefix="fetched-", dir=folder.incoming))
    try:
        # 2.
        fetched = temporary / "bundle"
        way = Way(limits=limits)
        pull(wanted.source, fetched, trust.keys, way, go_on, wanted.most_bytes)
        # 3.
        bundle = trust.check_folder(fetched)
        if bundle.digest != wanted.digest:
            raise FleetError(
                f"another bundle lies where {wanted.title} did: {bundle.digest[:12]}",
                found_in=shown_url(wanted.source),
            )
        # 4.
        folder.place(fetched, wanted.digest)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)

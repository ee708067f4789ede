"""Releases in the image repository: listing, and data for publishers elsewhere."""

import logging

from sqlalchemy import select
from sqlalchemy.orm import Session
from tuf.api.exceptions import RepositoryError
from tuf.api.metadata import Metadata, Targets

from edgepack.bundle.chunks import digest_file
from edgepack.bundle.manifest import MANIFEST_FILE, decode_manifest
from edgepack.bundle.signature import digest_list
from edgepack.errors import EdgepackError, FleetError
from edgepack.fleet.database.schema import ReleaseRow
from edgepack.fleet.documents.releases import (
    PublishedMetadata,
    PublishingView,
    SignedMetadata,
    full_title,
)
from edgepack.fleet.releases.folder import ReleaseAwayError, ReleaseFolder
from edgepack.fleet.repository.repository import ImageRepository
from edgepack.trust.listing import target_path
from edgepack.wire.orders import BundleRef

log = logging.getLogger(__name__)


def list_missing(
    session: Session, folder: ReleaseFolder, repository: ImageRepository
) -> tuple[BundleRef, ...]:
    """List releases that the fleet held before the repository existed.

    Returns:
        Releases that a publisher must sign elsewhere.
    """
    unlisted = []
    for row in session.scalars(select(ReleaseRow).where(ReleaseRow.deleted_at.is_(None))):
        try:
            is_listed = list_row(row, folder, repository)
        except (EdgepackError, OSError) as error:
            log.warning("bundle=%s not listed because=%s", row.digest, error)
            is_listed = False
        if not is_listed:
            unlisted.append(row.bundle)
    return tuple(unlisted)


def list_row(row: ReleaseRow, folder: ReleaseFolder, repository: ImageRepository) -> bool:
    """List a release with the keys within reach; False when a publisher must sign elsewhere."""
    if repository.is_listed(row.bundle):
        return True
    manifest = decode_manifest((folder.find(row.digest) / MANIFEST_FILE).read_bytes())
    return repository.publish(row.bundle, manifest)


def check_listed(repository: ImageRepository, bundle: BundleRef) -> None:
    """Reject a rollout of an unlisted release: every device would reject the release.

    Raises:
        FleetError: The image repository does not list the release.
    """
    if not repository.is_listed(bundle):
        raise FleetError(
            f"{full_title(bundle)} is not released: its publisher has not signed it yet",
            found_in="the fleet's image repository",
            remedy="edgepack publish BUNDLE --key PUBLISHER.key",
        )


def show_publishing(repository: ImageRepository, bundle: BundleRef) -> PublishingView:
    """Return the data for a publisher to sign a release.

    Raises:
        FleetError: No publisher may release that model.
    """
    path = target_path(bundle)
    role, state = repository.publisher_of(path), repository.state
    named, known = state.delegations()[role], state.publishers.get(role)
    pending = repository.pending(role)
    return PublishingView(
        bundle=bundle,
        role=role,
        keys=tuple(named.keyids),
        threshold=named.threshold,
        is_listed=state.listed(path) is not None,
        metadata=known.to_bytes().decode() if known else "",
        pending=pending.decode() if pending else "",
    )


def take_metadata(repository: ImageRepository, signed: SignedMetadata) -> PublishedMetadata:
    """Accept metadata signed by a publisher.

    Raises:
        FleetError: The metadata is invalid, or is not the role's next metadata.
    """
    try:
        metadata = Metadata[Targets].from_bytes(signed.metadata.encode())
    except (RepositoryError, UnicodeEncodeError) as error:
        raise FleetError("this is not metadata") from error
    if metadata.signed.type != Targets.type:
        raise FleetError("this is not metadata of releases")
    is_accepted = repository.take(signed.role, metadata)
    state = repository.state
    found = state.targets.signed.get_verification_result(
        signed.role, metadata.signed_bytes, metadata.signatures
    )
    return PublishedMetadata(
        role=signed.role,
        version=metadata.signed.version,
        signatures=len(found.signed),
        threshold=found.threshold,
        is_accepted=is_accepted,
    )


def read_target(folder: ReleaseFolder, digest: str) -> bytes | None:
    """Return the list of digests that a release's root digest is of; None when the fleet has
    none.
    """
    try:
        place = folder.find(digest)
        manifest = decode_manifest((place / MANIFEST_FILE).read_bytes())
        files = {entry.path: entry.sha256 for entry in manifest.files}
        files[MANIFEST_FILE] = digest_file(place / MANIFEST_FILE)
    except (ReleaseAwayError, OSError):
        return None
    return digest_list(files)

"""Methods of a running fleet for releases and their signed metadata."""

import shutil
import tempfile
from pathlib import Path

from sqlalchemy import select

from edgepack.errors import FleetError
from edgepack.fleet.database import (
    audit,
)
from edgepack.fleet.database.audit import Entry
from edgepack.fleet.database.schema import ReleaseRow
from edgepack.fleet.database.views import view_of
from edgepack.fleet.documents.releases import (
    MetadataBundle,
    PublishedMetadata,
    PublishingView,
    ReleaseView,
    SignedMetadata,
    full_title,
)
from edgepack.fleet.releases.fetching import check_source
from edgepack.fleet.releases.find import find_release
from edgepack.fleet.releases.listing import (
    list_row,
    read_target,
    show_publishing,
    take_metadata,
)
from edgepack.fleet.releases.publish import keep_release, verify_upload
from edgepack.fleet.rollouts.release_use import delete_release, find_unneeded
from edgepack.fleet.server.parts import Parts

UPLOAD_RESERVE_BYTES = 256 * 1024 * 1024


class ReleaseMethods(Parts, frozen=True, kw_only=True):
    """Methods for releases and their signed metadata."""

    def room_for_upload(self, size_bytes: int) -> Path:
        """Return a new folder to receive an upload of about that size.

        Raises:
            FleetError: The disk has no room for archive and unpacked bundle.
        """
        free = shutil.disk_usage(self.releases.incoming).free
        if 2 * size_bytes + UPLOAD_RESERVE_BYTES > free:
            raise FleetError(
                f"no room for a bundle of {size_bytes / 1e6:.1f} MB: {free / 1e6:.1f} MB are free",
                found_in=str(self.releases.incoming),
            )
        return Path(tempfile.mkdtemp(dir=self.releases.incoming))

    def add_release(self, archive: Path, source: str) -> ReleaseView:
        """Check an uploaded archive and store the release.

        Args:
            archive: The uploaded file.
            source: URL for other controllers; "" for none.

        Raises:
            EdgepackError: The archive is not a bundle, no trusted key signed the bundle, another
                content has its name and version or its release counter, or the source is invalid.
        """
        check_source(source)
        bundle = verify_upload(archive, self.trust)
        if self.releases.has(bundle.digest):
            self.releases.check(bundle.digest)  # The upload replaces files that are damaged.
        with self.store.transaction(self.by) as session:
            row = keep_release(session, self.releases, bundle, source, self.store.now())
        list_row(row, self.releases, self.repository)
        self.inbox.wake()
        return self.release_view(row)

    def withdraw_release(self, words: str) -> ReleaseView:
        """Withdraw a release, so that no further device installs the release; its files stay.

        Raises:
            FleetError: The release does not exist, or its publisher must sign elsewhere.
        """
        with self.store.transaction(self.by) as session:
            row = find_release(session, words)
            entry = Entry(action="release.withdraw", model=row.name, digest=row.digest)
            audit.note(session, self.store.now(), entry)
            if not self.repository.withdraw(row.bundle):
                raise FleetError(
                    f"the publisher of {full_title(row.bundle)} must sign that",
                    remedy=f"edgepack withdraw {row.name}@{row.version} --key PUBLISHER.key",
                )
        self.inbox.wake()
        return self.release_view(row)

    def publishing(self, words: str) -> PublishingView:
        """Return the data for a publisher to sign a release, or its end.

        Raises:
            FleetError: The release does not exist, or no publisher may release its model.
        """
        with self.store.reading() as session:
            row = find_release(session, words)
        return show_publishing(self.repository, row.bundle)

    def take_metadata(self, signed: SignedMetadata) -> PublishedMetadata:
        """Accept metadata signed by a publisher.

        Raises:
            FleetError: The metadata is not the publisher's next metadata.
        """
        with self.store.transaction(self.by) as session:
            taken = take_metadata(self.repository, signed)
            because = f"{taken.role}, version {taken.version}"
            numbers = {"signatures": taken.signatures, "threshold": taken.threshold}
            entry = Entry(action="release.sign", because=because, numbers=numbers)
            audit.note(session, self.store.now(), entry)
        self.inbox.wake()
        return taken

    def metadata(self) -> MetadataBundle:
        """Return all metadata that a device may lack."""
        return MetadataBundle(files=self.repository.messages())

    def target(self, digest: str) -> bytes | None:
        """Return the target of a release, for stock TUF clients."""
        return read_target(self.releases, digest)

    def list_releases(self) -> tuple[ReleaseView, ...]:
        """Return all releases, the newest first."""
        with self.store.reading() as session:
            query = select(ReleaseRow).where(ReleaseRow.deleted_at.is_(None))
            rows = session.scalars(query.order_by(ReleaseRow.added_at.desc()))
            return tuple(self.release_view(row) for row in rows)

    def unneeded_releases(self, keep: int) -> tuple[ReleaseView, ...]:
        """Return listed releases that nothing points to, but for the newest of each model."""
        with self.store.reading() as session:
            views = tuple(map(self.release_view, find_unneeded(session, keep)))
        return tuple(view for view in views if view.is_listed)

    def remove_release(self, words: str) -> ReleaseView:
        """Delete a release that nothing points to.

        Raises:
            FleetError: The release does not exist, or is in use.
        """
        with self.store.transaction(self.by) as session:
            release = find_release(session, words)
            delete_release(session, release, self.store.now())
            view = self.release_view(release)
        self.repository.withdraw(view.bundle)
        self.releases.forget(view.bundle.digest)
        return view

    def release_view(self, row: ReleaseRow) -> ReleaseView:
        """Return the view of a release."""
        return view_of(ReleaseView, row, is_listed=self.repository.is_listed(row.bundle))

"""Intake of a release: check its bundle and name, and move the bundle to its place."""

import logging
from pathlib import Path

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from edgepack.bundle.archive import unpack
from edgepack.bundle.chunks import digest_file
from edgepack.bundle.manifest import MANIFEST_FILE, SIGNATURE_FILE, Manifest
from edgepack.bundle.trust import TrustPolicy
from edgepack.bundle.verify import VerifiedBundle
from edgepack.errors import FleetError
from edgepack.fleet.database import audit
from edgepack.fleet.database.audit import Entry
from edgepack.fleet.database.schema import ReleaseRow
from edgepack.fleet.documents.releases import BundleHead, full_title
from edgepack.fleet.releases.folder import ReleaseFolder
from edgepack.tasks.table import items_of
from edgepack.wire.orders import BundleRef

log = logging.getLogger(__name__)


def read_head(head: BundleHead, trust: TrustPolicy) -> tuple[BundleRef, Manifest]:
    """Return the bundle of a manifest and its signature.

    Raises:
        FleetError: The fleet trusts no key.
        BundleError: No trusted key signed the bundle, or the bundle is malformed.
    """
    _check_trust(trust)
    signed, manifest = trust.check_manifest(head.signature, head.manifest)
    facts = manifest.facts
    bundle = BundleRef(
        name=facts.name, version=facts.version, release=facts.release, digest=signed.digest
    )
    return bundle, manifest


def verify_upload(archive: Path, trust: TrustPolicy) -> VerifiedBundle:
    """Unpack an uploaded archive next to the archive, and check every byte.

    Raises:
        FleetError: The fleet trusts no key.
        BundleError: The archive is hostile or damaged, or no trusted key signed the bundle.
    """
    _check_trust(trust)
    folder = archive.with_suffix(".unpacked")
    unpack(archive, folder)
    return trust.check_folder(folder)


def keep_release(
    session: Session, folder: ReleaseFolder, bundle: VerifiedBundle, source: str, now: float
) -> ReleaseRow:
    """Move a checked bundle to its place and store its row; an existing release stays unchanged.

    `source` is the URL for other controllers, "" for none.

    1. No other content has its name and version, or its release counter.
    2. The bundle is moved to its place in a single step.
    3. The release's row is stored. If that fails, the files in place do no harm.

    Raises:
        FleetError: Another content has the same name and version or release counter.
    """
    facts = bundle.manifest.facts
    ref = BundleRef(
        name=facts.name, version=facts.version, release=facts.release, digest=bundle.digest
    )
    # 1.
    check_identity(session, ref)
    # 2.
    place = folder.place(bundle.folder, bundle.digest)
    # 3.
    row = session.get(ReleaseRow, bundle.digest)
    if row is not None:
        if row.deleted_at is not None or source not in ("", row.source):
            row.deleted_at = None
            row.source = source or row.source
            _note_published(session, row, now)
        return row
    manifest, signature = place / MANIFEST_FILE, place / SIGNATURE_FILE
    row = ReleaseRow(
        digest=bundle.digest,
        name=facts.name,
        version=facts.version,
        release=facts.release,
        folder=bundle.digest,
        size_bytes=sum(entry.size_bytes for entry in bundle.manifest.files),
        manifest_sha256=digest_file(manifest),
        manifest_bytes=manifest.stat().st_size,
        signature_sha256=digest_file(signature),
        signature_bytes=signature.stat().st_size,
        added_at=now,
        source=source,
        items=items_of(facts.description),
    )
    session.add(row)
    session.flush()
    log.info("bundle=%s added name=%s version=%s", row.digest, row.name, row.version)
    _note_published(session, row, now)
    return row


def _note_published(session: Session, row: ReleaseRow, now: float) -> None:
    entry = Entry(
        action="release.publish",
        model=row.name,
        digest=row.digest,
        because=full_title(row.bundle),
        numbers={"release": row.release, "size_bytes": row.size_bytes, "source": row.source},
    )
    audit.note(session, now, entry)


def check_identity(session: Session, bundle: BundleRef) -> None:
    """Reject a content if another content has the same name and version, or the same release
    counter.

    Raises:
        FleetError: The fleet holds another content.
    """
    same = or_(ReleaseRow.version == bundle.version, ReleaseRow.release == bundle.release)
    query = select(ReleaseRow).where(
        ReleaseRow.name == bundle.name, ReleaseRow.digest != bundle.digest, same
    )
    other = session.scalars(query.order_by(ReleaseRow.added_at).limit(1)).first()
    if other is None:
        return
    held = other.bundle
    if other.version == bundle.version:
        problem = f"the fleet holds another content of {bundle.name} {bundle.version}"
    else:
        problem = f"release {bundle.release} of {bundle.name} is another version's in this fleet"
    raise FleetError(
        f"{problem}: {full_title(held)}, and this one is {full_title(bundle)}",
        found_in=f"release {held.release} of {held.name}",
        remedy="edgepack build --version VERSION --release NUMBER, with numbers that are new",
    )


def _check_trust(trust: TrustPolicy) -> None:
    if not trust.keys:
        raise FleetError(
            "this fleet trusts no key, so it takes no release",
            remedy="edgepack fleet serve --trust release.pub",
        )

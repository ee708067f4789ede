"""Taking a release in: its bundle is checked, put in its place, and noted."""

import logging
import shutil
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace
from sqlalchemy.orm import Session

from edgepack.bundle.archive import unpack
from edgepack.bundle.chunks import digest_file
from edgepack.bundle.keys import PublicKey
from edgepack.bundle.manifest import MANIFEST_FILE, SIGNATURE_FILE
from edgepack.bundle.verify import VerifiedBundle, verify_folder
from edgepack.durable import flush_folder
from edgepack.errors import FleetError
from edgepack.fleet.database.schema import ReleaseRow
from edgepack.fleet.releases.folder import ReleaseFolder

log = logging.getLogger(__name__)


def place_release(
    folder: ReleaseFolder, archive: Path, keys: Sequence[PublicKey]
) -> VerifiedBundle:
    """Checks an archive that was uploaded and moves its bundle to its place.

    1. Somebody is trusted at all.
    2. The archive is unpacked beside its place, verified from the signature to every byte.
    3. The bundle is moved to its place in one step; one that is there already stays.

    Raises:
        FleetError: The fleet trusts no key.
        BundleError: The archive is hostile or damaged, or no trusted key signed it.
    """
    # 1.
    if not keys:
        raise FleetError(
            "this fleet trusts no key, so it takes no release",
            remedy="edgepack fleet serve --trust release.pub",
        )
    # 2.
    unpacked = archive.with_suffix(".unpacked")
    try:
        unpack(archive, unpacked)
        bundle = verify_folder(unpacked, keys)
        # 3.
        place = folder.root / bundle.digest
        if not place.is_dir():
            unpacked.rename(place)
            flush_folder(folder.root)
    finally:
        shutil.rmtree(unpacked, ignore_errors=True)
    return replace(bundle, folder=place)


def note_release(session: Session, bundle: VerifiedBundle, now: float) -> ReleaseRow:
    """Takes down a bundle that lies in its place; one that is known already stays as it is."""
    row = session.get(ReleaseRow, bundle.digest)
    if row is not None:
        return row
    facts = bundle.manifest.facts
    manifest, signature = bundle.folder / MANIFEST_FILE, bundle.folder / SIGNATURE_FILE
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
    )
    session.add(row)
    session.flush()
    log.info("bundle=%s added name=%s version=%s", row.digest, row.name, row.version)
    return row

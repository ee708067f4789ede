"""Search of a release by name and version, `digits@1.2.0`, or by the beginning of its digest."""

import re

from sqlalchemy import select
from sqlalchemy.orm import Session

from edgepack.errors import FleetError
from edgepack.fleet.database.schema import ReleaseRow
from edgepack.fleet.documents.releases import full_title
from edgepack.text import natural_order

_DIGEST = re.compile(r"[0-9a-f]{8,64}")
MAX_LISTED = 5


def find_release(session: Session, words: str) -> ReleaseRow:
    """Return the release of that name.

    Args:
        session: The transaction.
        words: `NAME@VERSION`, or 8 or more digits of a digest.

    Raises:
        FleetError: No release matches, or several releases match.
    """
    name, _, version = words.partition("@")
    is_called = (ReleaseRow.name == name) & (ReleaseRow.version == version)
    if _DIGEST.fullmatch(words):
        is_called |= ReleaseRow.digest.startswith(words)
    found = session.scalars(
        select(ReleaseRow).where(is_called, ReleaseRow.deleted_at.is_(None))
    ).all()
    if len(found) == 1:
        return found[0]
    if found:
        raise FleetError(
            f"{words[:80]!r} is more than one release",
            found_in=", ".join(full_title(row.bundle) for row in found),
            remedy="name it by the first 12 digits of its digest",
        )
    rows = session.scalars(select(ReleaseRow).where(ReleaseRow.deleted_at.is_(None)))
    held = [f"{row.name}@{row.version}" for row in rows]
    listed = sorted(held, key=natural_order, reverse=True)[:MAX_LISTED]
    listed += ["…"] * (len(held) > MAX_LISTED)
    raise FleetError(
        f"the fleet holds no release {words[:80]!r}",
        found_in=f"releases: {', '.join(listed) or 'none'}",
        remedy="edgepack fleet releases",
    )

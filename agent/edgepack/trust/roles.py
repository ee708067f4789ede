"""The roles of a fleet's TUF metadata, their files, and the limits of these files.

root                 keys of the roles below; n of m keys, offline
  timestamp          names the newest snapshot; online
  snapshot           versions of all files of metadata; online
  targets            delegates to the roles below; offline
    releases[-TEAM]  releases of some models; keys of a publisher
    director         orders of a device; online, and in no snapshot
"""

import re

from edgepack.errors import TrustError

ROOT, TIMESTAMP, SNAPSHOT, TARGETS = "root", "timestamp", "snapshot", "targets"
DIRECTOR = "director"
RELEASES = "releases"
"""The role of the publisher that has no name of its own."""

ONLINE = (TIMESTAMP, SNAPSHOT, DIRECTOR)
"""Roles whose keys the controller holds."""

MAX_METADATA_BYTES = 110 * 1024
"""A file of metadata is one message, which must stay below what a broker lets pass."""
MAX_ROOT_ROTATIONS = 1024
"""Root versions that are followed in one go."""
MAX_DELEGATIONS = 64
"""Roles that are asked for one release, at most."""

_PUBLISHER = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
_ROLE = re.compile(rf"{ROOT}|{TIMESTAMP}|{SNAPSHOT}|{TARGETS}|{RELEASES}(-{_PUBLISHER.pattern})?")
_FILE = re.compile(rf"(?:([1-9][0-9]{{0,8}})\.)?({_ROLE.pattern})\.json")


def file_name(role: str, version: int | None = None) -> str:
    """Return the file that a role's metadata is in; without a version, the newest."""
    return f"{role}.json" if version is None else f"{version}.{role}.json"


def read_file_name(name: str) -> tuple[str, int | None] | None:
    """Return role and version of a file's name; None for a foreign file."""
    found = _FILE.fullmatch(name)
    if found is None:
        return None
    version, role = found[1], found[2]
    return role, int(version) if version else None


def publisher_role(publisher: str) -> str:
    """Return the role of a publisher, by the publisher's name; "" is the unnamed publisher.

    Raises:
        TrustError: The name is invalid.
    """
    if not publisher:
        return RELEASES
    if not _PUBLISHER.fullmatch(publisher):
        raise TrustError(
            f"{publisher[:80]!a} is not a name of a publisher",
            remedy="name it with a-z, 0-9 and -, 40 at most",
        )
    return f"{RELEASES}-{publisher}"


def is_publisher_role(role: str) -> bool:
    """Return True if a role says which releases there are."""
    return role == RELEASES or role.startswith(f"{RELEASES}-")

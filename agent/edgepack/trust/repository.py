"""Client of an image repository: TUF's client workflow over a cache and a source.

python-tuf's `TrustedMetadataSet` verifies each file; this class decides order, sources and storage.
Only accepted files are stored.
"""

import contextlib
import datetime
from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeVar, cast

from tuf.api import exceptions
from tuf.api.metadata import MetaFile, TargetFile, Targets
from tuf.ngclient._internal.trusted_metadata_set import TrustedMetadataSet
from tuf.ngclient.config import EnvelopeType

from edgepack.errors import TrustError
from edgepack.trust.roles import (
    MAX_DELEGATIONS,
    MAX_METADATA_BYTES,
    MAX_ROOT_ROTATIONS,
    ROOT,
    SNAPSHOT,
    TARGETS,
    TIMESTAMP,
    file_name,
)
from edgepack.trust.sources import Fetch, fetch_nothing

T = TypeVar("T")

ISSUED_AT = "issued_at"
"""Field of a signed timestamp, and of a director's word: seconds since the epoch."""
_MAX_TIME = 2**33


class Cache(Protocol):
    """Cache of accepted metadata."""

    def load(self, name: str) -> bytes | None:
        """Return a file, or None; the content is verified like any other."""

    def save(self, name: str, content: bytes) -> None:
        """Store a file durably; raise `OSError` on failure."""


class TrustedRepository:
    """Repository with its accepted metadata.

    Args:
        root: Root metadata that is trusted from the start.
        cache: Where accepted metadata is kept.
        wall: Clock, seconds since the epoch.

    Raises:
        TrustError: The root is none.
    """

    def __init__(self, root: bytes, cache: Cache, *, wall: Callable[[], float]) -> None:
        self._root, self._cache, self._wall = root, cache, wall
        self._floor = 0.0
        self._is_whole = False
        self._set = self._begin()

    @property
    def root_version(self) -> int:
        """Version of the root that is believed."""
        return self._set.root.version

    @property
    def timestamp_version(self) -> int:
        """Version of the timestamp that is believed; 0 when none is."""
        return self._set.timestamp.version if TIMESTAMP in self._set else 0

    @property
    def is_whole(self) -> bool:
        """True if all files of the timestamp were present and unexpired at the last check."""
        return self._is_whole

    @property
    def has_consistent_snapshots(self) -> bool:
        """True if files have their version, and targets their digest, in their names."""
        return bool(self._set.root.consistent_snapshot)

    @property
    def targets(self) -> Targets:
        """The top-level targets.

        Raises:
            TrustError: The targets are missing.
        """
        if not self._is_whole:
            raise TrustError("there is no metadata that holds now")
        return self._set.targets

    def now(self) -> float:
        """Return the time: never before the newest metadata that was accepted was made."""
        return max(self._wall(), self._floor)

    def note_time(self, issued_at: float) -> None:
        """Raise the lower bound of the current time to the time of accepted metadata."""
        if 0 <= issued_at <= _MAX_TIME:
            self._floor = max(self._floor, issued_at)

    def refresh(self, fetch: Fetch = fetch_nothing) -> None:
        """Verify and store new metadata, and verify known metadata once more.

        Raises:
            TrustError: A file has a wrong signature, is older than the known file, expired, or
                missing. Formerly accepted files stay.
            OSError: Accepted metadata cannot be stored.
        """
        try:
            self._walk(fetch)
        except TrustError:
            if fetch is not fetch_nothing:
                with contextlib.suppress(TrustError):  # It was not whole before, either.
                    self._walk(fetch_nothing)
            raise

    @property
    def expires_at(self) -> float:
        """Time when the first accepted metadata expires, seconds since the epoch."""
        return min(float(signed.expires.timestamp()) for signed in self._set)

    def load_delegated(self, fetch: Fetch = fetch_nothing) -> None:
        """Load the metadata of all publishers, so that nothing is missing later.

        Raises:
            TrustError: A publisher's metadata does not hold, or is missing.
            OSError: Accepted metadata cannot be stored.
        """
        delegations = self.targets.delegations
        for role in (delegations.roles or {}) if delegations else {}:
            if f"{role}.json" in self._set.snapshot.meta:
                with contextlib.suppress(_ExpiredError):  # It concerns that publisher alone.
                    self._load_targets(role, TARGETS, fetch)

    def find(self, path: str, fetch: Fetch = fetch_nothing) -> TargetFile | None:
        """Return the target at a path: the first responsible role decides.

        Raises:
            TrustError: A role's metadata does not hold, or is missing.
            OSError: Accepted metadata cannot be stored.
        """
        if not self._is_whole:
            raise TrustError("there is no metadata that holds now")
        to_visit, visited = [(TARGETS, ROOT)], set[str]()
        while to_visit and len(visited) <= MAX_DELEGATIONS:
            role, delegator = to_visit.pop()
            if role in visited:
                continue
            targets = self._load_targets(role, delegator, fetch)
            if path in targets.targets:
                return targets.targets[path]
            visited.add(role)
            children = []
            if targets.delegations is not None:
                for child, is_terminating in targets.delegations.get_roles_for_target(path):
                    children.append((child, role))
                    if is_terminating:
                        to_visit = []
                        break
            to_visit.extend(reversed(children))
        return None

    def _begin(self) -> TrustedMetadataSet:
        return self._accept(ROOT, lambda: TrustedMetadataSet(self._root, EnvelopeType.METADATA))

    def _walk(self, fetch: Fetch) -> None:
        # The floor of time is found anew, too: one that a revoked key brought does not last.
        self._is_whole, self._floor = False, 0.0
        self._set = self._begin()
        self._set_time()
        self._load_roots(fetch)
        self._load_timestamp(fetch)
        self._set_time()
        self._load_snapshot(fetch)
        self._load_targets(TARGETS, ROOT, fetch)
        self._is_whole = True

    def _set_time(self) -> None:
        self._set.reference_time = datetime.datetime.fromtimestamp(self.now(), datetime.UTC)

    def _load_roots(self, fetch: Fetch) -> None:
        """Follow the chain of roots; each is signed by the keys of the previous root."""
        for _ in range(MAX_ROOT_ROTATIONS):
            version = self._set.root.version + 1
            name = file_name(ROOT, version)
            kept = self._cache.load(name)
            if kept is not None and self._is_accepted(self._set.update_root, kept):
                continue
            content = fetch(ROOT, version, MAX_METADATA_BYTES)
            if content is None:
                return
            self._accept(ROOT, partial(self._set.update_root, content))
            self._cache.save(name, content)

    def _load_timestamp(self, fetch: Fetch) -> None:
        self._check_fresh(ROOT)
        kept = self._cache.load(file_name(TIMESTAMP))
        if kept is not None:
            self._is_accepted(self._set.update_timestamp, kept)
            self._note_timestamp()
        content = fetch(TIMESTAMP, None, MAX_METADATA_BYTES)
        if content is None:
            if TIMESTAMP not in self._set:
                raise TrustError("there is no timestamp yet")
            return
        try:
            self._accept(TIMESTAMP, lambda: self._set.update_timestamp(content))
        except _KnownAlreadyError:
            return
        self._note_timestamp()
        self._cache.save(file_name(TIMESTAMP), content)

    def _note_timestamp(self) -> None:
        if TIMESTAMP in self._set:
            issued_at = self._set.timestamp.unrecognized_fields.get(ISSUED_AT)
            if isinstance(issued_at, int):
                self.note_time(issued_at)

    def _load_snapshot(self, fetch: Fetch) -> None:
        kept = self._cache.load(file_name(SNAPSHOT))
        if kept is not None and self._is_accepted(
            lambda content: self._set.update_snapshot(content, trusted=True), kept
        ):
            return
        self._check_fresh(TIMESTAMP)
        meta = self._set.timestamp.snapshot_meta
        version = meta.version if self._set.root.consistent_snapshot else None
        content = fetch(SNAPSHOT, version, _longest(meta))
        if content is None:
            raise _missing(SNAPSHOT, meta.version)
        self._accept(SNAPSHOT, lambda: self._set.update_snapshot(content))
        self._cache.save(file_name(SNAPSHOT), content)

    def _load_targets(self, role: str, delegator: str, fetch: Fetch) -> Targets:
        if self._set.contains(role, delegator):
            signed = self._set[role]
            return cast(Targets, signed)  # what the set keeps under such a role
        meta = self._set.snapshot.meta.get(f"{role}.json")
        if meta is None:
            raise TrustError(f"the snapshot does not name {role[:80]!a}, which is delegated")
        name = file_name(role)
        kept = self._cache.load(name)
        if kept is not None and self._is_accepted(
            lambda content: self._set.update_delegated_targets(content, role, delegator), kept
        ):
            return self._load_targets(role, delegator, fetch)
        self._check_fresh(SNAPSHOT)
        version = meta.version if self._set.root.consistent_snapshot else None
        content = fetch(role, version, _longest(meta))
        if content is None:
            if kept is not None and self._is_expired(kept, role, delegator):
                raise _ExpiredError(f"metadata of {role!r} has expired")
            raise _missing(role, meta.version)
        found = self._accept(
            role, lambda: self._set.update_delegated_targets(content, role, delegator)
        )
        self._cache.save(name, content)
        return found

    def _is_expired(self, kept: bytes, role: str, delegator: str) -> bool:
        try:
            self._set.update_delegated_targets(kept, role, delegator)
        except exceptions.ExpiredMetadataError:
            return True
        except exceptions.RepositoryError:
            return False
        return False

    def _check_fresh(self, role: str) -> None:
        """Raise if a role has expired: nothing below the role would be accepted."""
        signed = self._set[role]
        if signed.is_expired(self._set.reference_time):
            when = f"{signed.expires:%Y-%m-%d %H:%M} UTC"
            raise _ExpiredError(f"metadata of '{role}' expired on {when}")

    def _is_accepted(self, update: Callable[[bytes], object], content: bytes) -> bool:
        """Return True if stored metadata is still valid; an old file still protects against
        rollback.
        """
        try:
            update(content)
        except exceptions.RepositoryError:
            return False
        return True

    @staticmethod
    def _accept(role: str, judge: Callable[[], T]) -> T:
        try:
            return judge()
        except exceptions.EqualVersionNumberError as error:
            raise _KnownAlreadyError from error
        except exceptions.ExpiredMetadataError as error:
            raise _ExpiredError(f"metadata of {role[:80]!r} has expired") from error
        except exceptions.RepositoryError as error:
            raise TrustError(
                f"metadata of {role[:80]!a} is not accepted: {_reason(error)}"
            ) from error


class _ExpiredError(TrustError):
    """Metadata that is valid except for its expiry."""


class _KnownAlreadyError(Exception):
    """A timestamp of the version that is known."""


def _longest(meta: MetaFile) -> int:
    """Return the bytes that a file may have."""
    return min(meta.length or MAX_METADATA_BYTES, MAX_METADATA_BYTES)


def _missing(role: str, version: int) -> TrustError:
    return TrustError(f"metadata of {role[:80]!r} is missing, version {version}")


def _reason(error: exceptions.RepositoryError) -> str:
    if isinstance(error, exceptions.UnsignedMetadataError):
        return "it is not signed by the keys that it needs"
    return ascii(str(error))[1:-1][:200] or type(error).__name__

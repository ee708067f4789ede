"""The fleet's image repository: accepts publishers' metadata, and signs snapshot and timestamp.

The folder has a single writer at a time (`lock`); a running fleet notices writes of other
processes.
"""

import fcntl
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tuf.api.metadata import Metadata, MetaFile, Snapshot, Targets, Timestamp

from edgepack.bundle.manifest import Manifest
from edgepack.durable import write_file
from edgepack.errors import FleetError, SignatureError, TrustError
from edgepack.fleet.data_folder import OFFLINE_FOLDER, ONLINE_FOLDER
from edgepack.fleet.repository.keyring import KeyRing
from edgepack.fleet.repository.lifetimes import WARNED_DAYS, days_left, expiry_of, is_due
from edgepack.fleet.repository.metadata_files import MetadataFiles
from edgepack.fleet.repository.state import State, check_is_newer, is_signed, read_state, sign
from edgepack.trust.listing import list_release, read_listing, target_path
from edgepack.trust.repository import ISSUED_AT
from edgepack.trust.roles import (
    MAX_METADATA_BYTES,
    ROOT,
    SNAPSHOT,
    TARGETS,
    TIMESTAMP,
    file_name,
    is_publisher_role,
)
from edgepack.wire.orders import BundleRef

log = logging.getLogger(__name__)

METADATA_FOLDER = "metadata"
PENDING_FOLDER = "pending"
WARNED_SHARE = 0.8
"""Of what a file of metadata may have: then a person is told to make room."""


class ImageRepository:
    """Repository of a fleet.

    Args:
        folder: Holds `metadata/`, the controller's keys in `online/` and the other keys in
            `offline/` until a person moves these keys elsewhere.
        wall: Clock, seconds since the epoch.
        offline: Where the other keys lie now.
    """

    def __init__(
        self,
        folder: Path,
        *,
        wall: Callable[[], float] = time.time,
        offline: Path | None = None,
    ) -> None:
        self.folder = folder
        self.online, self.offline = folder / ONLINE_FOLDER, offline or folder / OFFLINE_FOLDER
        self.files = MetadataFiles(folder / METADATA_FOLDER)
        self.keys = KeyRing((self.online, self.offline))
        self._wall = wall
        self._turn = threading.RLock()
        self._is_held = False
        self._stamp = 0
        self._state: State | None = None
        self._closed: set[str] = set()

    @property
    def is_there(self) -> bool:
        """True if the fleet has a repository."""
        return self.files.are_there

    @property
    def is_new(self) -> bool:
        """True if no publisher has ever listed or withdrawn a release."""
        publishers = self.state.publishers.values()
        return all(it.signed.version == 1 and not it.signed.targets for it in publishers)

    @property
    def state(self) -> State:
        """Current metadata; read again after a write.

        Raises:
            FleetError: There is none, or a file is damaged.
        """
        with self._turn:
            if not self.is_there:
                raise FleetError(
                    "this fleet has no metadata yet",
                    found_in=str(self.files.folder),
                    remedy="edgepack fleet init",
                )
            stamp = self.files.stamp()
            if self._state is None or stamp != self._stamp:
                self._state, self._stamp = read_state(self.files), stamp
            return self._state

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the folder against other writers, of this process and of others; may be nested."""
        with self._turn:
            if self._is_held:
                yield
                return
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with (self.folder / "lock").open("w") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                self._is_held = True
                try:
                    yield
                finally:
                    self._is_held = False

    # What is asked.

    def is_listed(self, bundle: BundleRef) -> bool:
        """Return True if a bundle is a release."""
        return self.state.listed(target_path(bundle)) is not None

    def can_sign(self, role: str) -> bool:
        """Return True if enough keys of a role are within reach."""
        state = self.state
        held = self.keys.paths()
        wanted = state.delegator(role).get_delegated_role(role)
        return sum(key_id in held for key_id in wanted.keyids) >= wanted.threshold

    def keys_at_hand(self) -> tuple[str, ...]:
        """Return the roles with keys on the fleet's machine that could be kept elsewhere."""
        state, held = self.state, self.keys.files()
        roles = (ROOT, TARGETS, *filter(is_publisher_role, state.delegations()))
        return tuple(role for role in roles if any(key.keyid in held for key in state.keys(role)))

    def messages(self) -> dict[str, bytes]:
        """Return the files that devices hear, by name: every root, and the newest of all else.

        In an order in which a receiver can verify each message at once.
        """
        state = self.state
        names = {
            file_name(ROOT, version): file_name(ROOT, version)
            for version in self.files.versions(ROOT)
        }
        for role, metadata in state.lists.items():
            names[file_name(role)] = file_name(role, metadata.signed.version)
        names[file_name(SNAPSHOT)] = file_name(SNAPSHOT, state.snapshot.signed.version)
        names[file_name(TIMESTAMP)] = file_name(TIMESTAMP)
        found = {name: self.files.content(path) for name, path in names.items()}
        return {name: content for name, content in found.items() if content is not None}

    def warn_of_room(self) -> tuple[str, ...]:
        """Return the publishers with nearly full lists, a sentence each."""
        state, found = self.state, []
        for role, publisher in state.publishers.items():
            size = self.files.size(role, publisher.signed.version)
            if size > WARNED_SHARE * MAX_METADATA_BYTES:
                found.append(
                    f"'{role}' lists {len(publisher.signed.targets)} releases, and is "
                    f"{size / MAX_METADATA_BYTES:.0%} full: edgepack fleet releases prune"
                )
        return tuple(found)

    def warnings(self) -> tuple[str, ...]:
        """Return roles to sign again, or lists to shorten, soon; a sentence each."""
        state, now = self.state, self._wall()
        expiries = {ROOT: state.root.signed.expires}
        expiries |= {role: listed.signed.expires for role, listed in state.lists.items()}
        found = []
        for role, expires in expiries.items():
            left = days_left(expires, now)
            if left < WARNED_DAYS:
                said = f"expires in {left:.0f} days" if left > 0 else "has expired"
                found.append(f"the metadata of '{role}' {said}: edgepack fleet keys renew {role}")
        return (*found, *self.warn_of_room())

    # What is done.

    def publish(self, bundle: BundleRef, manifest: Manifest) -> bool:
        """List a bundle as a release, with the keys that are within reach.

        Returns:
            Whether the release is listed now; False if a publisher must sign elsewhere.

        Raises:
            FleetError: No publisher may release that model, or there is no room.
        """
        path = target_path(bundle)
        with self.lock():
            role = self.publisher_of(path)
            if self.state.listed(path) is not None:
                return True
            if not self.can_sign(role):
                return False
            draft = self.draft(role)
            draft.signed.targets[path] = list_release(bundle, manifest)
            return self._signs_and_saves(role, draft)

    def withdraw(self, bundle: BundleRef) -> bool:
        """Withdraw a bundle; return False if a publisher must sign the withdrawal elsewhere."""
        path = target_path(bundle)
        with self.lock():
            role = self.publisher_of(path)
            if self.state.listed(path) is None:
                return True
            if not self.can_sign(role):
                return False
            draft = self.draft(role)
            del draft.signed.targets[path]
            return self._signs_and_saves(role, draft)

    def publisher_of(self, path: str) -> str:
        """Return the role that decides about a target.

        Raises:
            FleetError: There is none.
        """
        role = self.state.publisher_of(path)
        if role is None:
            raise FleetError(
                f"no publisher may release the model '{path.partition('/')[0]}'",
                remedy="edgepack fleet keys publisher NAME --models PATTERN --key KEY.pub",
            )
        return role

    def draft(self, role: str) -> Metadata[Targets]:
        """Return the next version of a publisher's metadata, to be changed and signed."""
        found = self.state.publishers.get(role)
        expires = expiry_of(role, self._wall())
        if found is None:
            return Metadata(Targets(version=1, expires=expires))
        draft = Metadata[Targets].from_bytes(found.to_bytes())
        draft.signed.version += 1
        draft.signed.expires = expires
        draft.signatures.clear()
        return draft

    def accept(self, role: str, metadata: Metadata[Targets]) -> None:
        """Take in a publisher's metadata that was signed elsewhere.

        Raises:
            FleetError: The metadata is not the role's next metadata, or has fewer signatures than
                required.
        """
        with self.lock():
            self.check_next(role, metadata)
            if not is_signed(self.state.targets.signed, role, metadata):
                threshold = self.state.delegations()[role].threshold
                raise FleetError(
                    f"the metadata of '{role}' is not signed by {threshold} of its keys",
                    remedy="edgepack publish BUNDLE --key PUBLISHER.key, once for each key",
                )
            self._keep(role, metadata)
            self.go_round()

    def check_next(self, role: str, metadata: Metadata[Targets]) -> None:
        """Check that metadata can be a publisher's next, with any signer.

        1. The metadata is the next version of a publisher's role.
        2. The metadata lists releases, each of a model of that publisher.

        Raises:
            FleetError: A condition does not hold.
        """
        state = self.state
        # 1.
        if not is_publisher_role(role) or role not in state.delegations():
            raise FleetError(f"there is no publisher's role {role[:80]!a}")
        known = state.publishers[role].signed.version if role in state.publishers else 0
        check_is_newer(metadata.signed.version, known, role)
        # 2.
        if metadata.signed.delegations is not None:
            raise FleetError(f"'{role}' may not delegate")
        for path, target in metadata.signed.targets.items():
            try:
                read_listing(target)
            except TrustError as error:
                raise FleetError(error.problem) from error
            if state.publisher_of(path) != role:
                raise FleetError(f"'{role}' may not release the model '{path.partition('/')[0]}'")

    def pending(self, role: str) -> bytes | None:
        """Return the next metadata of a publisher that fewer keys have signed than must."""
        try:
            return self._pending_path(role).read_bytes()
        except FileNotFoundError:
            return None

    def take(self, role: str, metadata: Metadata[Targets]) -> bool:
        """Accept a publisher's next metadata, or keep the metadata until enough keys signed.

        Returns:
            Whether enough did.

        Raises:
            FleetError: The metadata is not the role's next metadata, or no key of the role signed.
        """
        with self.lock():
            if is_signed(self.state.targets.signed, role, metadata):
                self.accept(role, metadata)
                self._pending_path(role).unlink(missing_ok=True)
                return True
            self.check_next(role, metadata)
            found = self.state.targets.signed.get_verification_result(
                role, metadata.signed_bytes, metadata.signatures
            )
            if not found.signed:
                raise FleetError(
                    f"no key of '{role}' has signed this",
                    found_in=f"its keys: {', '.join(found.unsigned)}",
                    remedy="edgepack publish BUNDLE --key PUBLISHER.key",
                )
            path = self._pending_path(role)
            path.parent.mkdir(exist_ok=True)
            write_file(path, metadata.to_bytes())
            return False

    def _pending_path(self, role: str) -> Path:
        return self.folder / PENDING_FOLDER / file_name(role)

    def renew(self) -> bool:
        """Sign expiring metadata again if the keys are here; return whether any metadata was
        signed.
        """
        with self.lock():
            state, now = self.state, self._wall()
            root = state.root.signed
            is_broken = not (
                is_signed(root, TIMESTAMP, state.timestamp)
                and is_signed(root, SNAPSHOT, state.snapshot)
            )
            due = [
                role
                for role, metadata in state.lists.items()
                if is_due(role, metadata.signed.expires, now) and self.can_sign(role)
            ]
            signed = [
                role
                for role in due
                if self._signs_and_saves(
                    role,
                    self.draft(role) if role != TARGETS else self.draft_targets(),
                    is_last=False,
                )
            ]
            is_old = is_due(TIMESTAMP, state.timestamp.signed.expires, now) or is_due(
                SNAPSHOT, state.snapshot.signed.expires, now
            )
            if signed or is_old or is_broken:
                self.go_round()
            return bool(signed or is_old or is_broken)

    def draft_targets(self) -> Metadata[Targets]:
        """Return the next version of the top-level targets."""
        draft = Metadata[Targets].from_bytes(self.state.targets.to_bytes())
        draft.signed.version += 1
        draft.signed.expires = expiry_of(TARGETS, self._wall())
        draft.signatures.clear()
        return draft

    def _signs_and_saves(
        self, role: str, draft: Metadata[Targets], *, is_last: bool = True
    ) -> bool:
        """Sign and store metadata; return False if a key cannot be opened, such as a key in a
        token.
        """
        delegator = self.state.delegator(role)
        try:
            sign(draft, self.keys.signers(delegator.get_delegated_role(role).keyids))
        except SignatureError as error:
            if role not in self._closed:
                self._closed.add(role)
                log.warning("role=%s cannot be signed for here because=%s", role, error.problem)
            return False
        self._closed.discard(role)
        self._keep(role, draft)
        if is_last:
            self.go_round()
        return True

    def _keep(self, role: str, metadata: Metadata[Targets]) -> None:
        self.files.save(role, metadata.to_bytes(), metadata.signed.version)

    def go_round(self) -> None:
        """Sign a snapshot of all metadata, and the timestamp of the snapshot.

        Raises:
            FleetError: The controller's keys are not the keys in the root.
        """
        now = self._wall()
        is_first = not self.is_there
        before = None if is_first else self.files.timestamp()
        version = before.signed.snapshot_meta.version if before else 0
        meta = dict(self.files.snapshot(version).signed.meta) if version else {}
        for role in (TARGETS, *self.files.publishers()):
            newest = self.files.versions(role)[-1]
            content = self.files.content(file_name(role, newest)) or b""
            meta[f"{role}.json"] = _meta_file(newest, content)
        snapshot = Metadata(
            Snapshot(version=version + 1, expires=expiry_of(SNAPSHOT, now), meta=meta)
        )
        self._sign_online(SNAPSHOT, snapshot)
        content = snapshot.to_bytes()
        self.files.save(SNAPSHOT, content, snapshot.signed.version)
        timestamp = Metadata(
            Timestamp(
                version=before.signed.version + 1 if before else 1,
                expires=expiry_of(TIMESTAMP, now),
                snapshot_meta=_meta_file(snapshot.signed.version, content),
                unrecognized_fields={ISSUED_AT: int(now)},
            )
        )
        self._sign_online(TIMESTAMP, timestamp)
        self.files.save(TIMESTAMP, timestamp.to_bytes(), None)

    def _sign_online(self, role: str, metadata: Metadata[Any]) -> None:
        root = self.files.root().signed
        sign(metadata, self.keys.signers(root.roles[role].keyids))
        if not is_signed(root, role, metadata):
            raise FleetError(
                f"the key of '{role}' that the root names is not here",
                found_in=str(self.online),
                remedy=f"copy it there, or edgepack fleet keys rotate {role}",
            )


def _meta_file(version: int, content: bytes) -> MetaFile:
    return MetaFile.from_data(version, content, ["sha256"])

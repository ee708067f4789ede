"""Metadata of a repository at a moment, with derived facts."""

from dataclasses import dataclass
from typing import Any

from securesystemslib.signer import Signer
from tuf.api import exceptions
from tuf.api.metadata import (
    DelegatedRole,
    Key,
    Metadata,
    Root,
    Snapshot,
    TargetFile,
    Targets,
    Timestamp,
)

from edgepack.errors import FleetError
from edgepack.fleet.repository.metadata_files import MetadataFiles
from edgepack.trust.roles import ROOT, TARGETS, is_publisher_role

PATTERN_END = "/*"
"""Behind a model's name, or a pattern of names, all its releases."""


@dataclass(frozen=True)
class State:
    """Root, timestamp, snapshot, targets, and the targets of each publisher that has any."""

    root: Metadata[Root]
    timestamp: Metadata[Timestamp]
    snapshot: Metadata[Snapshot]
    targets: Metadata[Targets]
    publishers: dict[str, Metadata[Targets]]

    @property
    def lists(self) -> dict[str, Metadata[Targets]]:
        """The targets of the targets role and of the publishers, by role."""
        return {TARGETS: self.targets, **self.publishers}

    def delegator(self, role: str) -> Root | Targets:
        """Return the role that defines the keys of a role."""
        return self.root.signed if role in self.root.signed.roles else self.targets.signed

    def delegations(self) -> dict[str, DelegatedRole]:
        """Return the roles that the targets key delegates to, in order of evaluation."""
        delegations = self.targets.signed.delegations
        return dict(delegations.roles or {}) if delegations else {}

    def keys(self, role: str) -> tuple[Key, ...]:
        """Return the keys of a role.

        Raises:
            FleetError: The role does not exist.
        """
        delegator = self.delegator(role)
        try:
            key_ids = delegator.get_delegated_role(role).keyids
        except ValueError as error:
            names = (*self.root.signed.roles, *self.delegations())
            raise FleetError(
                f"there is no role {role[:80]!a}", found_in=f"roles: {', '.join(names)}"
            ) from error
        return tuple(delegator.get_key(key_id) for key_id in key_ids)

    def publisher_of(self, path: str) -> str | None:
        """Return the publisher's role that decides about a target; None when there is none."""
        for name, role in self.delegations().items():
            if is_publisher_role(name) and role.is_delegated_path(path):
                return name
        return None

    def listed(self, path: str) -> TargetFile | None:
        """Return the release at a path, by the devices' rules."""
        role = self.publisher_of(path)
        publisher = self.publishers.get(role) if role else None
        return publisher.signed.targets.get(path) if publisher else None


def read_state(files: MetadataFiles) -> State:
    """Return the state of the files: the newest root, and the files of the timestamp.

    Raises:
        FleetError: A file is missing or damaged.
    """
    timestamp = files.timestamp()
    snapshot = files.snapshot(timestamp.signed.snapshot_meta.version)
    versions = {
        name.removesuffix(".json"): meta.version for name, meta in snapshot.signed.meta.items()
    }
    return State(
        root=files.root(),
        timestamp=timestamp,
        snapshot=snapshot,
        targets=files.targets(TARGETS, versions[TARGETS]),
        publishers={
            role: files.targets(role, version)
            for role, version in versions.items()
            if role != TARGETS
        },
    )


def is_signed(delegator: Root | Targets, role: str, metadata: Metadata[Any]) -> bool:
    """Return True if enough keys of a role signed its metadata."""
    try:
        delegator.verify_delegate(role, metadata.signed_bytes, metadata.signatures)
    except (exceptions.RepositoryError, ValueError):
        return False
    return True


def sign(metadata: Metadata[Any], signers: tuple[Signer, ...]) -> None:
    """Sign by all of these and nobody else."""
    metadata.signatures.clear()
    for signer in signers:
        metadata.sign(signer, append=True)


def patterns_of(role: DelegatedRole) -> tuple[str, ...]:
    """Return the models of a publisher, as patterns of their names."""
    return tuple(path.removesuffix(PATTERN_END) for path in role.paths or ())


def check_is_newer(found: int, known: int, role: str) -> None:
    """Reject metadata that is not the very next version.

    Raises:
        FleetError: The metadata is not the next version.
    """
    if found != known + 1:
        raise FleetError(
            f"the metadata of '{role}' is version {found}, the next one is {known + 1}",
            remedy="somebody else was faster: do it again" if role != ROOT else None,
        )

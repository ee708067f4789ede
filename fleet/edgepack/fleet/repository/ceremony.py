"""Ceremonies with offline keys: create a repository, and change the signers of roles."""

from collections.abc import Mapping, Sequence
from typing import Any

from tuf.api.metadata import (
    DelegatedRole,
    Delegations,
    Key,
    Metadata,
    Root,
    Targets,
)

from edgepack.errors import FleetError
from edgepack.fleet.repository.keyring import KeyRing, adopt_key, make_key
from edgepack.fleet.repository.lifetimes import expiry_of
from edgepack.fleet.repository.repository import ImageRepository
from edgepack.fleet.repository.state import PATTERN_END, is_signed, sign
from edgepack.trust.orders import DIRECTOR_PATHS
from edgepack.trust.roles import (
    DIRECTOR,
    ONLINE,
    RELEASES,
    ROOT,
    SNAPSHOT,
    TARGETS,
    TIMESTAMP,
    is_publisher_role,
)

ANY_MODEL = "*"
MAX_KEYS = 32
"""Of one role."""


def init(
    repository: ImageRepository,
    now: float,
    *,
    root_keys: int = 1,
    root_threshold: int = 1,
    in_tokens: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Make keys and the first metadata.

    1. The controller's keys, and the offline keys: root, targets and publisher.
    2. Root lists the keys; targets delegates every model to the publisher, and orders to the
    director.
    3. A snapshot without any release goes round.

    Args:
        repository: Where; its offline folder gets the keys that are to lie offline.
        now: Seconds since the epoch.
        root_keys, root_threshold: Number of root keys, and of required signatures.
        in_tokens: By role: PKCS #11 URIs of existing keys to use instead of new keys.

    Raises:
        FleetError: There is metadata already, or the numbers make no sense.
        SignatureError: A token lacks the key.
    """
    in_tokens = in_tokens or {}
    root_keys = len(in_tokens.get(ROOT, ())) or root_keys
    if not 1 <= root_threshold <= root_keys <= MAX_KEYS:
        raise FleetError(
            f"{root_threshold} of {root_keys} keys of root cannot be",
            remedy="--root-keys 3 --root-threshold 2",
        )
    with repository.lock():
        if repository.is_there:
            raise FleetError(
                "this fleet has its metadata already",
                found_in=str(repository.files.folder),
                remedy="edgepack fleet keys shows who signs what",
            )
        # 1.
        numbers = dict.fromkeys((*ONLINE, TARGETS, RELEASES), 1) | {ROOT: root_keys}
        keys = {
            role: new_keys(repository, role, number, in_tokens.get(role, ()))
            for role, number in numbers.items()
        }
        # 2.
        root = Root(version=1, expires=expiry_of(ROOT, now), consistent_snapshot=True)
        for role in (ROOT, TARGETS, SNAPSHOT, TIMESTAMP):
            for key in keys[role]:
                root.add_key(key, role)
        root.roles[ROOT].threshold = root_threshold
        targets = Targets(
            version=1, expires=expiry_of(TARGETS, now), delegations=Delegations({}, {})
        )
        delegate(targets, RELEASES, keys[RELEASES], (ANY_MODEL,), threshold=1)
        delegate(targets, DIRECTOR, keys[DIRECTOR], (), threshold=1)
        # 3.
        _sign_and_save(repository, ROOT, Metadata(root), (root,))
        _sign_and_save(repository, TARGETS, Metadata(targets), (root,))
        releases = Metadata(Targets(version=1, expires=expiry_of(RELEASES, now)))
        _sign_and_save(repository, RELEASES, releases, (targets,))
        repository.go_round()


def new_keys(
    repository: ImageRepository, role: str, number: int, in_tokens: Sequence[str] = ()
) -> list[Key]:
    """Make keys for a role, or adopt keys in tokens; the keys count once metadata lists the keys.

    Args:
        repository: Its folders get the keys.
        role: Role of the keys.
        number: How many are made where none are named.
        in_tokens: PKCS #11 URIs of keys in tokens.

    Raises:
        FleetError: A folder cannot be made, or a URI is invalid or given twice.
        SignatureError: A token lacks the key.
    """
    is_offline = role not in ONLINE
    folder = repository.offline if is_offline else repository.online
    if not in_tokens:
        return [make_key(folder, role, is_offline=is_offline) for _ in range(number)]
    keys: list[Key] = [adopt_key(folder, role, uri) for uri in in_tokens]
    if len({key.keyid for key in keys}) < len(keys):
        raise FleetError("one key was named twice", found_in=" ".join(in_tokens))
    return keys


def delegate(
    targets: Targets, role: str, keys: Sequence[Key], models: Sequence[str], *, threshold: int
) -> None:
    """Assign models to a publisher, or devices' orders to the director.

    A publisher with its own patterns comes before publishers of every model, and decides alone.
    """
    delegations = targets.delegations or Delegations({}, {})
    roles = dict(delegations.roles or {})
    paths = [f"{model}{PATTERN_END}" for model in models] or list(DIRECTOR_PATHS)
    roles[role] = DelegatedRole(role, [], threshold, terminating=True, paths=paths)
    delegations.roles = dict(sorted(roles.items(), key=_comes_after))
    targets.delegations = delegations
    for key in keys:
        targets.add_key(key, role)


def _comes_after(item: tuple[str, DelegatedRole]) -> tuple[bool, bool]:
    name, role = item
    return name == DIRECTOR, f"{ANY_MODEL}{PATTERN_END}" in (role.paths or ())


def change_keys(
    repository: ImageRepository,
    role: str,
    now: float,
    *,
    add: Sequence[Key] = (),
    remove: Sequence[str] = (),
    threshold: int | None = None,
) -> None:
    """Change the signing keys of a role.

    1. The role's keys and threshold are changed in root or in targets.
    2. The changed metadata is signed by its keys; a new root also by the previous root's keys.
    3. The role's own metadata is signed again if its old signatures are no longer valid.

    Args:
        repository: Its offline folder is where keys are looked for.
        role: Role of the keys.
        now: Seconds since the epoch.
        add: New keys.
        remove: Ids of keys that do not count any more.
        threshold: Number of signatures required from now on; None keeps the number.

    Raises:
        FleetError: The role or key does not exist, too few keys would remain for the threshold, or
            keys that must sign are not within reach.
    """
    with repository.lock():
        state = repository.state
        state.keys(role)  # raises when there is no such role
        is_in_root = role in state.root.signed.roles
        draft: Metadata[Any] = (
            _next(Metadata[Root].from_bytes(state.root.to_bytes()), ROOT, now)
            if is_in_root
            else repository.draft_targets()
        )
        # 1.
        _edit(draft.signed, role, add=add, remove=remove, threshold=threshold)
        # 2.
        root = draft.signed if is_in_root else state.root.signed
        if is_in_root:
            _sign_and_save(repository, ROOT, draft, (state.root.signed, root))
        else:
            _sign_and_save(repository, TARGETS, draft, (root,))
        # 3.
        targets = repository.files.targets(TARGETS, repository.files.versions(TARGETS)[-1])
        if is_in_root and not is_signed(root, TARGETS, targets):
            _sign_and_save(repository, TARGETS, repository.draft_targets(), (root,))
        known = state.publishers.get(role)
        if known is not None and not is_signed(targets.signed, role, known):
            _sign_and_save(repository, role, repository.draft(role), (targets.signed,))
        repository.go_round()


def add_publisher(
    repository: ImageRepository,
    role: str,
    now: float,
    *,
    keys: Sequence[Key],
    models: Sequence[str],
    threshold: int,
) -> None:
    """Add a publisher for models, or replace the keys and models of a publisher.

    Raises:
        FleetError: The keys cannot be so many, or the targets key is not within reach.
    """
    if not 1 <= threshold <= len(keys) <= MAX_KEYS:
        raise FleetError(
            f"{threshold} of {len(keys)} keys cannot sign", remedy="--key, once for each key"
        )
    with repository.lock():
        draft = repository.draft_targets()
        delegate(draft.signed, role, keys, models, threshold=threshold)
        _sign_and_save(repository, TARGETS, draft, (repository.state.root.signed,))
        repository.go_round()


def renew(repository: ImageRepository, role: str, now: float) -> None:
    """Sign root, targets or a publisher's metadata for another year.

    Raises:
        FleetError: The role does not exist, or its keys are not within reach.
    """
    with repository.lock():
        state = repository.state
        state.keys(role)
        if role == ROOT:
            draft = _next(Metadata[Root].from_bytes(state.root.to_bytes()), ROOT, now)
            _sign_and_save(repository, ROOT, draft, (state.root.signed, draft.signed))
        elif role == TARGETS:
            _sign_and_save(repository, TARGETS, repository.draft_targets(), (state.root.signed,))
        elif is_publisher_role(role):
            draft_of_role = repository.draft(role)
            _sign_and_save(repository, role, draft_of_role, (state.targets.signed,))
        repository.go_round()


def _next(metadata: Metadata[Any], role: str, now: float) -> Metadata[Any]:
    metadata.signed.version += 1
    metadata.signed.expires = expiry_of(role, now)
    return metadata


def _edit(
    delegator: Root | Targets,
    role: str,
    *,
    add: Sequence[Key],
    remove: Sequence[str],
    threshold: int | None,
) -> None:
    named = delegator.get_delegated_role(role)
    for key in add:
        delegator.add_key(key, role)
    for key_id in remove:
        if key_id not in named.keyids:
            raise FleetError(
                f"'{role}' has no key {key_id[:80]!a}", remedy="edgepack fleet keys list"
            )
        delegator.revoke_key(key_id, role)
    named.threshold = named.threshold if threshold is None else threshold
    if not 1 <= named.threshold <= len(named.keyids) <= MAX_KEYS:
        raise FleetError(
            f"'{role}' would have {len(named.keyids)} keys, of which {named.threshold} must sign",
            remedy=f"edgepack fleet keys rotate {role} adds one, threshold {role} N asks for fewer",
        )


def _sign_and_save(
    repository: ImageRepository,
    role: str,
    metadata: Metadata[Any],
    delegators: Sequence[Root | Targets],
) -> None:
    """Sign with the keys of every role that lists the role's keys, and store the result only if the
    signatures are enough.
    """
    named = [delegator.get_delegated_role(role) for delegator in delegators]
    wanted = dict.fromkeys(key_id for one in named for key_id in one.keyids)
    keys: KeyRing = repository.keys
    sign(metadata, keys.signers(wanted))
    for delegator, one in zip(delegators, named, strict=True):
        if not is_signed(delegator, role, metadata):
            raise FleetError(
                f"{one.threshold} of {len(one.keyids)} keys of '{role}' must sign, and fewer are "
                "within reach",
                found_in=", ".join(map(str, (repository.online, repository.offline))),
                remedy="--keys FOLDER names where they lie",
            )
    version = metadata.signed.version
    repository.files.save(role, metadata.to_bytes(), version)

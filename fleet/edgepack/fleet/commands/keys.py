"""Commands `edgepack fleet init` and `edgepack fleet keys …`: signing keys and roles.

The commands change the fleet's folder; a running fleet loads the changes.
"""

import time
from collections.abc import Callable
from pathlib import Path

import click
import msgspec

from edgepack.bundle.keys import PublicKey, load_public_key
from edgepack.bundle.pkcs11_uri import is_uri
from edgepack.bundle.signing_keys import load_signing_key
from edgepack.errors import FleetError
from edgepack.fleet.commands.options import check_data_folder, data_option, json_option
from edgepack.fleet.commands.printing import print_result
from edgepack.fleet.data_folder import DataFolder
from edgepack.fleet.enrolment.authority import CA_FILE, Authority
from edgepack.fleet.repository import ceremony
from edgepack.fleet.repository.keyring import tuf_key
from edgepack.fleet.repository.repository import ImageRepository
from edgepack.fleet.repository.state import patterns_of
from edgepack.key_place import check_key_place, into_work_tree_option
from edgepack.trust.roles import (
    DIRECTOR,
    RELEASES,
    ROOT,
    TARGETS,
    is_publisher_role,
    publisher_role,
)

_Command = Callable[..., None]

_keys_option = click.option(
    "--keys",
    "offline",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where the offline keys lie now; tuf/offline in the fleet's folder when not given.",
)
_token_keys_option = click.option(
    "--key",
    "uris",
    metavar="URI",
    multiple=True,
    help="A new key in a token (pkcs11:…), instead of one that is made; repeatable.",
)
_NUMBER = click.IntRange(1, ceremony.MAX_KEYS)


class RoleView(msgspec.Struct, frozen=True, kw_only=True):
    """A role of the fleet's metadata.

    Attributes:
        role: Its name.
        keys: Ids of its keys.
        threshold: Number of signatures required.
        within_reach: Ids of keys whose private key was found here.
        models: Patterns of the model names that a publisher may release.
    """

    role: str
    keys: tuple[str, ...]
    threshold: int
    within_reach: tuple[str, ...]
    models: tuple[str, ...] = ()


class AuthorityView(msgspec.Struct, frozen=True, kw_only=True):
    """Authority of devices and broker: its certificate and its expiry (UTC, seconds)."""

    certificate: Path
    ends_at: float


class TrustView(msgspec.Struct, frozen=True, kw_only=True):
    """Keys and roles of a fleet.

    Attributes:
        root_version: Version of the root; grows with each change of the root's keys.
        roles: The roles.
        warnings: Metadata that must be signed again soon.
    """

    root_version: int
    roles: tuple[RoleView, ...]
    warnings: tuple[str, ...]


def _token_option(role: str, told: str) -> Callable[[_Command], _Command]:
    return click.option(f"--{role}-key", metavar="URI", multiple=True, help=told)


def _acts(command: _Command) -> _Command:
    return data_option(_keys_option(json_option(command)))


@click.command()
@click.option("--root-keys", type=_NUMBER, default=1, show_default=True, help="Keys of root.")
@click.option(
    "--root-threshold", type=_NUMBER, default=1, show_default=True, help="Of them must sign."
)
@_token_option("root", "A key of root in a token (pkcs11:…), instead of --root-keys; repeatable.")
@_token_option("targets", "The key of targets, in a token.")
@_token_option("publisher", "The publisher's key, in a token.")
@_token_option("director", "The director's key, in a token that this machine reaches.")
@into_work_tree_option
@_acts
def init(
    root_keys: int,
    root_threshold: int,
    root_key: tuple[str, ...],
    targets_key: tuple[str, ...],
    publisher_key: tuple[str, ...],
    director_key: tuple[str, ...],
    data: Path,
    offline: Path | None,
    as_json: bool,
) -> None:
    """Make the fleet's keys and TUF metadata; `fleet serve` makes a simple set where none is.

    EDGEPACK_KEY_PASSPHRASE encrypts the offline keys: root, targets and publisher.

    \b
    Example:
      edgepack fleet init --keys /media/stick/keys --root-keys 3 --root-threshold 2
      edgepack fleet init --root-key 'pkcs11:token=fleet;object=root'
    """
    check_data_folder(data)
    if offline is not None:
        check_key_place(offline)
    repository = _open(data, offline)
    ceremony.init(
        repository,
        time.time(),
        root_keys=root_keys,
        root_threshold=root_threshold,
        in_tokens={
            ROOT: root_key,
            TARGETS: targets_key,
            RELEASES: publisher_key,
            DIRECTOR: director_key,
        },
    )
    place = repository.offline
    print_result(
        _view(repository),
        as_json,
        lambda shown: (
            f"{_table(shown)}\n\nkeys of root, targets and publisher: {place}; no machine needs "
            "them but the one on which somebody signs"
        ),
    )


@click.group()
def keys() -> None:
    """Show and change the signing keys of this fleet. Devices follow by themselves.

    \b
    Example:
      edgepack fleet keys list
      edgepack fleet keys rotate timestamp --keys /media/stick/keys
    """


@keys.command("list")
@_acts
def list_keys(data: Path, offline: Path | None, as_json: bool) -> None:
    """List the roles and their keys, with a mark for private keys within reach.

    \b
    Example:
      edgepack fleet keys list
    """
    print_result(_view(_open(data, offline)), as_json, _table)


@keys.command()
@click.argument("role")
@_token_keys_option
@_acts
def rotate(
    role: str, uris: tuple[str, ...], data: Path, offline: Path | None, as_json: bool
) -> None:
    """Replace all keys of ROLE with new keys.

    \b
    Example:
      edgepack fleet keys rotate timestamp --keys /media/stick/keys
      edgepack fleet keys rotate director --key 'pkcs11:token=fleet;object=director'
    """
    repository = _open(data, offline)
    old = [key.keyid for key in repository.state.keys(role)]
    new = ceremony.new_keys(repository, role, len(old), uris)
    ceremony.change_keys(repository, role, time.time(), add=new, remove=old)
    print_result(_view(repository), as_json, _table)


@keys.command()
@click.argument("role")
@click.argument("key_id")
@_acts
def revoke(role: str, key_id: str, data: Path, offline: Path | None, as_json: bool) -> None:
    """Revoke the key KEY_ID of ROLE; its first digits suffice.

    
    Example:
      edgepack fleet keys revoke root 3f2a9c01
    """
    repository = _open(data, offline)
    found = [key.keyid for key in repository.state.keys(role) if key.keyid.startswith(key_id)]
    ceremony.change_keys(
        repository, role, time.time(), remove=found if len(found) == 1 else [key_id]
    )
    print_result(_view(repository), as_json, _table)


@keys.command()
@click.argument("role")
@click.argument("number", type=_NUMBER)
@click.option("--add", type=click.IntRange(0, ceremony.MAX_KEYS), default=0, help="New keys.")
@_token_keys_option
@_acts
def threshold(
    role: str,
    number: int,
    add: int,
    uris: tuple[str, ...],
    data: Path,
    offline: Path | None,
    as_json: bool,
) -> None:
    """Require signatures of NUMBER keys of ROLE from now on.

    
    Example:
      edgepack fleet keys threshold root 2 --add 2
    """
    repository = _open(data, offline)
    repository.state.keys(role)
    new = ceremony.new_keys(repository, role, add, uris)
    ceremony.change_keys(repository, role, time.time(), add=new, threshold=number)
    print_result(_view(repository), as_json, _table)


@keys.command()
@click.argument("name")
@click.option("--models", multiple=True, required=True, help="Model, or pattern; repeatable.")
@click.option(
    "--key",
    "public_keys",
    multiple=True,
    required=True,
    metavar="FILE|URI",
    help="A public key of the publisher, or pkcs11:… for a key in a token; repeatable.",
)
@click.option(
    "--threshold", "number", type=_NUMBER, default=1, show_default=True, help="Of them must sign."
)
@_acts
def publisher(
    name: str,
    models: tuple[str, ...],
    public_keys: tuple[str, ...],
    number: int,
    data: Path,
    offline: Path | None,
    as_json: bool,
) -> None:
    """Make NAME the only publisher of the models that match the patterns.

    
    Example:
      edgepack fleet keys publisher vision --models 'ocr-*' --models defects --key vision.pub
    """
    repository = _open(data, offline)
    ceremony.add_publisher(
        repository,
        publisher_role("" if name == RELEASES else name),
        time.time(),
        keys=[tuf_key(_public_key(where)) for where in public_keys],
        models=models,
        threshold=number,
    )
    print_result(_view(repository), as_json, _table)


@keys.command()
@click.argument("role")
@_acts
def renew(role: str, data: Path, offline: Path | None, as_json: bool) -> None:
    """Sign the metadata of ROLE for another year: root, targets, or a publisher's.

    \b
    Example:
      edgepack fleet keys renew root --keys /media/stick/keys
    """
    repository = _open(data, offline)
    ceremony.renew(repository, role, time.time())
    print_result(_view(repository), as_json, _table)


@keys.command("renew-authority")
@data_option
@json_option
def renew_authority(data: Path, as_json: bool) -> None:
    """Renew the certificate of the authority of devices and broker, with the same key.

    All certificates stay valid, under the authority's earlier certificate and under the new
    certificate. Devices get the new certificate with their next certificate; copy the new
    certificate to the broker with fleet broker-config.

    
    Example:
      edgepack fleet keys renew-authority
    """
    check_data_folder(data)
    folder = DataFolder(data).pki
    if not (folder / CA_FILE).exists():
        raise FleetError(
            "this fleet has no authority yet", found_in=str(folder), remedy="edgepack fleet serve"
        )
    authority = Authority(folder)
    authority.renew()
    renewed = AuthorityView(certificate=authority.ca_file, ends_at=authority.ends_at)
    print_result(renewed, as_json, lambda one: f"Wrote {one.certificate}.")


def _public_key(where: str) -> PublicKey:
    return load_signing_key(where).public_key() if is_uri(where) else load_public_key(Path(where))


def _open(data: Path, offline: Path | None) -> ImageRepository:
    return ImageRepository(DataFolder(data).tuf, offline=offline)


def _view(repository: ImageRepository) -> TrustView:
    state, held = repository.state, repository.keys.paths()
    named = {**state.root.signed.roles, **state.delegations()}
    return TrustView(
        root_version=state.root.signed.version,
        roles=tuple(
            RoleView(
                role=name,
                keys=tuple(role.keyids),
                threshold=role.threshold,
                within_reach=tuple(key_id for key_id in role.keyids if key_id in held),
                models=patterns_of(state.delegations()[name]) if is_publisher_role(name) else (),
            )
            for name, role in named.items()
        ),
        warnings=repository.warnings(),
    )


def _table(shown: TrustView) -> str:
    lines = [f"root version {shown.root_version}"]
    for role in shown.roles:
        here = f"{len(role.within_reach)} of {len(role.keys)} within reach"
        models = f", releases {' '.join(role.models)}" if role.models else ""
        lines.append(f"{role.role:<20} {role.threshold} must sign, {here}{models}")
        lines += [f"  {key_id[:16]}" for key_id in role.keys]
    return "\n".join([*lines, *(f"warning: {one}" for one in shown.warnings)])

"""Credentials of a registry, from the environment or from the settings of `docker login`.

Credentials belong to a single host. A reference may come from anybody (a release's source, a
redirect), so credentials of the environment count only for the host that the environment names.
"""

import base64
import os
import re
from pathlib import Path

import msgspec

from edgepack.decoding import decode_json
from edgepack.errors import TransferError, parse_problem

HOST = "EDGEPACK_REGISTRY_HOST"
USER, PASSWORD = "EDGEPACK_REGISTRY_USER", "EDGEPACK_REGISTRY_PASSWORD"
_MAX_BYTES = 1024 * 1024
_HOST = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:\d{1,5})?")


class _Entry(msgspec.Struct, kw_only=True):
    auth: str = ""
    identitytoken: str = ""


class _DockerConfig(msgspec.Struct, kw_only=True):
    auths: dict[str, _Entry] = {}
    credential_store: str = msgspec.field(default="", name="credsStore")
    credential_helpers: dict[str, str] = msgspec.field(default_factory=dict, name="credHelpers")


def find_credentials(host: str, environment: dict[str, str] | None = None) -> str:
    """Return `user:password` of a registry, "" if there is none.

    Args:
        host: The registry, with its port if given.
        environment: Variables; None uses the process's variables.

    Raises:
        TransferError: The variables name no host or a malformed host, docker's file cannot be read,
            or docker keeps the password in a helper.
    """
    found = dict(os.environ) if environment is None else environment
    if found.get(USER) or found.get(PASSWORD):
        if not found.get(HOST):
            raise TransferError(
                f"{USER} is set, but {HOST} does not name the registry",
                found_in="the environment",
                remedy=f"set {HOST}={host}, if the password belongs to {host}",
            )
        if not _HOST.fullmatch(found[HOST].strip()):
            raise TransferError(
                f"{HOST} is not a host: {found[HOST][:100]!a}",
                found_in="the environment",
                remedy=f"write the host alone, with its port if it has one: {HOST}={host}",
            )
        if _plain_host(found[HOST]) == _plain_host(host):
            return f"{found.get(USER, '')}:{found.get(PASSWORD, '')}"
    folder = Path(
        found.get("DOCKER_CONFIG") or Path(found.get("HOME") or "~").expanduser() / ".docker"
    )
    path = folder / "config.json"
    if not path.is_file():
        return ""
    config = _read(path)
    for name in (host, f"https://{host}", f"https://{host}/v1/", f"https://{host}/v2/"):
        entry = config.auths.get(name)
        if entry is not None and entry.auth:
            return _decode(entry.auth, path)
        helper = config.credential_helpers.get(name) or (entry and config.credential_store)
        if helper:
            raise TransferError(
                f"docker keeps the password of '{host}' in its helper {helper!a}",
                found_in=str(path),
                remedy=f"set {HOST}, {USER} and {PASSWORD}",
            )
    return ""


def _plain_host(host: str) -> str:
    """Return a host in a form for comparison: in lower case, without the usual port."""
    return host.strip().lower().removesuffix(":443")


def _read(path: Path) -> _DockerConfig:
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES)
        return decode_json(content, _DockerConfig)
    except (OSError, ValueError, RecursionError) as error:
        raise TransferError(
            f"docker's settings cannot be read: {parse_problem(error)}",
            found_in=str(path),
            remedy=f"docker login, or set {HOST}, {USER} and {PASSWORD}",
        ) from error


def _decode(auth: str, path: Path) -> str:
    try:
        return base64.b64decode(auth, validate=True).decode("utf-8").rstrip("\0")
    except ValueError as error:  # Not ASCII, not base64, or not UTF-8 in it.
        raise TransferError(
            "an 'auth' of docker's settings is not the base64 of a user and a password",
            found_in=f"{path}, auths",
            remedy=f"docker login, or set {HOST}, {USER} and {PASSWORD}",
        ) from error

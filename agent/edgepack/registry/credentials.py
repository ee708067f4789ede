"""Who one is at a registry: from the environment, or from where `docker login` left it."""

import base64
import binascii
import os
from pathlib import Path

import msgspec

from edgepack.errors import TransferError

USER, PASSWORD = "EDGEPACK_REGISTRY_USER", "EDGEPACK_REGISTRY_PASSWORD"
_MAX_BYTES = 1024 * 1024


class _Entry(msgspec.Struct, kw_only=True):
    auth: str = ""
    identitytoken: str = ""


class _DockerConfig(msgspec.Struct, kw_only=True):
    auths: dict[str, _Entry] = {}
    credential_store: str = msgspec.field(default="", name="credsStore")
    credential_helpers: dict[str, str] = msgspec.field(default_factory=dict, name="credHelpers")


def find_credentials(host: str, environment: dict[str, str] | None = None) -> str:
    """`user:password` for a registry; "" where there is none, and it is asked as anybody.

    Args:
        host: The registry, with its port where it has one.
        environment: Variables; None takes those of the process.

    Raises:
        TransferError: docker's file cannot be read, or keeps them where only docker looks.
    """
    found = dict(os.environ) if environment is None else environment
    if found.get(USER) or found.get(PASSWORD):
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
                remedy=f"set {USER} and {PASSWORD}",
            )
    return ""


def _read(path: Path) -> _DockerConfig:
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES)
        return msgspec.json.decode(content, type=_DockerConfig)
    except (OSError, ValueError, RecursionError) as error:
        raise TransferError(
            f"docker's settings cannot be read: {error}",
            found_in=str(path),
            remedy=f"docker login, or set {USER} and {PASSWORD}",
        ) from error


def _decode(auth: str, path: Path) -> str:
    try:
        return base64.b64decode(auth, validate=True).decode("utf-8").rstrip("\0")
    except (binascii.Error, UnicodeDecodeError) as error:
        raise TransferError(
            "docker's settings hold a password that is none", found_in=f"{path}, auths"
        ) from error

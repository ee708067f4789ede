"""The folder of an agent: settings, trusted keys, the device's certificate."""

import json
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec

from edgepack.agent.config import SETTINGS, read_config
from edgepack.agent.enrolment.identity import key_pem
from edgepack.agent.enrolment.package import Package
from edgepack.durable import write_file
from edgepack.errors import DeviceError
from edgepack.web.broker_url import read_broker_urls

CONFIG_FILE, BEFORE_FILE, ROOT_FILE = "agent.toml", "agent.toml.before", "root.json"
KEY_FILE, CERTIFICATE_FILE, AUTHORITY_FILE = "device.key", "device.crt", "ca.crt"
METADATA_PATH = "/tuf/metadata"
"""Below a fleet's URL: its metadata, for whoever asks."""


def check_unused(folder: Path) -> None:
    """Reject a folder that a device was set up from before.

    Raises:
        DeviceError: The folder holds settings.
    """
    config = folder / CONFIG_FILE
    if config.exists():
        raise DeviceError(
            "this folder holds a device's settings already",
            found_in=str(config),
            remedy="choose another folder with -o",
        )


def write_device_folder(
    folder: Path, package: Package, certificate: str, key: ec.EllipticCurvePrivateKey
) -> tuple[Path, Path | None]:
    """Write the trusted keys and root, the device's own certificate, and `agent.toml`.

    Existing settings that name all of these files are kept with their edits; other settings are put
    aside as `agent.toml.before`.

    Args:
        folder: Created if missing.
        package: Facts of the fleet.
        certificate: PEM.
        key: The device's private key, which the certificate is of.

    Returns:
        The settings' path, and the path of the settings that were put aside, if any.

    Raises:
        DeviceError: The folder cannot be written.
    """
    config, before = folder / CONFIG_FILE, None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        trusted = [f"trusted-{number + 1}.pub" for number in range(len(package.trusted_keys))]
        for name, pem in zip(trusted, package.trusted_keys, strict=True):
            write_file(folder / name, pem.encode())
        if package.root:
            write_file(folder / ROOT_FILE, package.root.encode())
        write_file(folder / AUTHORITY_FILE, package.authority.encode())
        write_file(folder / KEY_FILE, key_pem(key), mode=0o600)
        write_file(folder / CERTIFICATE_FILE, certificate.encode())
        settings = _settings(package, trusted).encode()
        if not config.exists():
            write_file(config, settings)
        elif not _names_all(config, settings):
            before = _free(config.with_name(BEFORE_FILE))
            config.replace(before)
            write_file(config, settings)
    except OSError as error:
        raise DeviceError(
            f"cannot write the device's folder: {error.strerror}", found_in=str(folder)
        ) from error
    read_config(config)  # what the agent will read must be readable
    return config, before


def _free(path: Path) -> Path:
    number, free = 1, path
    while free.exists():
        number += 1
        free = path.with_name(f"{path.name}-{number}")
    return free


def _names_all(config: Path, settings: bytes) -> bool:
    """Return True if a folder's settings name the same broker, files, trust and sources as new
    settings.
    """
    write_file(wanted := config.with_name(f".{CONFIG_FILE}.next"), settings)
    try:
        found, new = read_config(config), read_config(wanted)
    finally:
        wanted.unlink()
    if found.broker is None or new.broker is None:
        return False
    names = ("url", "ca_file", "cert_file", "key_file")
    urls, new_urls = ({one.url for one in of.transfer.sources} for of in (found, new))
    return (
        new_urls <= urls
        and found.identity == new.identity
        and (found.trust.keys, found.trust.root) == (new.trust.keys, new.trust.root)
        and all(getattr(found.broker, name) == getattr(new.broker, name) for name in names)
    )


def _settings(package: Package, trusted: list[str]) -> str:
    lines = [
        "# Settings of edgepack-agent on this device. Paths are relative to this file.",
        f"v = {SETTINGS.major}",
        f"minor = {SETTINGS.minor}",
        f"device = {_quoted(package.device)}",
        f"tenant = {_quoted(package.tenant)}",
        f"state_dir = {_quoted(package.state_dir)}",
        "",
        "[broker]",
        f"url = {_quoted(package.broker)}",
    ]
    own = [f'cert_file = "{CERTIFICATE_FILE}"', f'key_file = "{KEY_FILE}"']
    if _is_tls(package.broker):
        lines += [f'ca_file = "{AUTHORITY_FILE}"', *own]
    lines += ["", "[identity]", *own]
    keys = ", ".join(f'"{name}"' for name in trusted)
    lines += ["", "[trust]", f"keys = [{keys}]"]
    if package.root:
        lines.append(f'root = "{ROOT_FILE}"')
        if package.enrol_at and not package.enrol_authority:
            lines.append(f"metadata = {_quoted(package.enrol_at.rstrip('/') + METADATA_PATH)}")
    for source in package.sources:
        lines += ["", "[[transfer.sources]]", f"url = {_quoted(source)}"]
    return "\n".join([*lines, ""])


def _is_tls(broker: str) -> bool:
    try:
        return any(node.is_tls for node in read_broker_urls(broker))
    except ValueError:
        return False  # The agent reports what is wrong with the URL.


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)

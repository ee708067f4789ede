"""The folder that a device is set up from: its settings, the keys it trusts, its certificate."""

import json
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec

from edgepack.agent.config import SETTINGS, read_config
from edgepack.durable import write_file
from edgepack.errors import FleetError
from edgepack.fleet.documents.devices import Enrollment
from edgepack.fleet.enrolment.authority import key_pem

CONFIG_FILE, ROOT_FILE = "agent.toml", "root.json"


def check_unused(folder: Path) -> None:
    """Refuses a folder that a device was set up from before.

    Raises:
        FleetError: It holds settings.
    """
    config = folder / CONFIG_FILE
    if config.exists():
        raise FleetError(
            "this folder holds a device's settings already",
            found_in=str(config),
            remedy="choose another folder with -o",
        )


def write_device_folder(
    folder: Path, enrollment: Enrollment, key: ec.EllipticCurvePrivateKey, state_dir: Path
) -> Path:
    """Writes `agent.toml`, the trusted keys and root and, for TLS, the device's own certificate.

    Args:
        folder: Made when it is missing; to be copied to the device.
        enrollment: What the fleet said.
        key: The device's private key.
        state_dir: Where the device keeps its state. It is written as an absolute path, so that it
            stays where it is when the folder is moved, and applications can name it.

    Returns:
        The settings' path.

    Raises:
        FleetError: The folder cannot be written.
    """
    config = folder / CONFIG_FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        trusted = []
        for number, pem in enumerate(enrollment.trusted_keys, start=1):
            name = f"trusted-{number}.pub"
            write_file(folder / name, pem.encode())
            trusted.append(name)
        if enrollment.root:
            write_file(folder / ROOT_FILE, enrollment.root.encode())
        if enrollment.certificate:
            write_file(folder / "device.key", key_pem(key), mode=0o600)
            write_file(folder / "device.crt", enrollment.certificate.encode())
            write_file(folder / "ca.crt", enrollment.authority.encode())
        write_file(config, _settings(enrollment, trusted, state_dir.absolute()).encode())
    except OSError as error:
        raise FleetError(
            f"cannot write the device's folder: {error.strerror}", found_in=str(folder)
        ) from error
    read_config(config)  # what the agent will read must be readable
    return config


def _settings(enrollment: Enrollment, trusted: list[str], state_dir: Path) -> str:
    lines = [
        "# Settings of edgepack-agent on this device. Paths are relative to this file.",
        f"v = {SETTINGS.major}",
        f"minor = {SETTINGS.minor}",
        f'device = "{enrollment.device}"',
        f'tenant = "{enrollment.tenant}"',
        f"state_dir = {json.dumps(str(state_dir), ensure_ascii=False)}",
        "",
        "[broker]",
        f'url = "{enrollment.broker}"',
    ]
    if enrollment.certificate:
        lines += ['ca_file = "ca.crt"', 'cert_file = "device.crt"', 'key_file = "device.key"']
    keys = ", ".join(f'"{name}"' for name in trusted)
    lines += ["", "[trust]", f"keys = [{keys}]"]
    if enrollment.root:
        lines.append(f'root = "{ROOT_FILE}"')
    return "\n".join([*lines, ""])

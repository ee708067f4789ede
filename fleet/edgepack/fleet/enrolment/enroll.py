"""Enrolling a device: registering it, and writing the folder that it is set up from."""

from pathlib import Path

from edgepack.agent.config import read_config
from edgepack.durable import write_file
from edgepack.errors import FleetError
from edgepack.fleet.commands.client import FleetClient
from edgepack.fleet.documents import Enrollment, EnrollRequest, FleetInfo
from edgepack.fleet.enrolment.authority import key_pem, make_key, make_signing_request

CONFIG_FILE = "agent.toml"


def enroll_device(client: FleetClient, *, device: str, group: str, folder: Path) -> Enrollment:
    """Enrols a device and writes `agent.toml`, trusted keys and, for TLS, its certificate.

    The device's private key is made here and never leaves the folder.

    Args:
        client: The running fleet.
        device: Device id.
        group: Its group.
        folder: Made when it is missing; to be copied to the device.

    Raises:
        FleetError: The folder holds settings already, cannot be written, or the fleet refuses.
    """
    config = folder / CONFIG_FILE
    if config.exists():
        raise FleetError(
            "this folder holds a device's settings already",
            found_in=str(config),
            remedy="choose another folder with -o",
        )
    key = make_key()
    is_tls = client.get("/v1/info", FleetInfo).broker_is_tls
    request = make_signing_request(key, device).decode() if is_tls else ""
    enrollment = client.post(
        "/v1/devices",
        Enrollment,
        EnrollRequest(device=device, group=group, signing_request=request),
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        trusted = []
        for number, pem in enumerate(enrollment.trusted_keys, start=1):
            name = f"trusted-{number}.pub"
            write_file(folder / name, pem.encode())
            trusted.append(name)
        if enrollment.certificate:
            write_file(folder / "device.key", key_pem(key), mode=0o600)
            write_file(folder / "device.crt", enrollment.certificate.encode())
            write_file(folder / "ca.crt", enrollment.authority.encode())
        write_file(config, _settings(enrollment, trusted).encode())
    except OSError as error:
        raise FleetError(
            f"cannot write the device's folder: {error.strerror}", found_in=str(folder)
        ) from error
    read_config(config)  # what the agent will read must be readable
    return enrollment


def _settings(enrollment: Enrollment, trusted: list[str]) -> str:
    lines = [
        "# Settings of edgepack-agent on this device. Paths are relative to this file.",
        f'device = "{enrollment.device}"',
        f'tenant = "{enrollment.tenant}"',
        'state_dir = "state"',
        "",
        "[broker]",
        f'url = "{enrollment.broker}"',
    ]
    if enrollment.certificate:
        lines += ['ca_file = "ca.crt"', 'cert_file = "device.crt"', 'key_file = "device.key"']
    keys = ", ".join(f'"{name}"' for name in trusted)
    lines += ["", "[trust]", f"keys = [{keys}]", ""]
    return "\n".join(lines)

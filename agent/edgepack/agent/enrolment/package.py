"""The file that a device is set up from: `edgepack fleet enroll` writes the package.

The package holds the device's facts of its fleet, and either key and certificate or, for a device
that can reach the fleet, an enrolment token. With the token the device gets a certificate for a
self-made key.
"""

from pathlib import Path

import msgspec

from edgepack.agent.state.models import DEFAULT_STATE_DIR
from edgepack.agent.state.state_file import read_regular
from edgepack.durable import write_file
from edgepack.errors import DeviceError
from edgepack.versions import Format, NewerVersionError, Version
from edgepack.wire import topics
from edgepack.wire.messages import Moment

SUFFIX = ".enrol"
_MAX_BYTES = 256 * 1024
_REMEDY = "name the file that edgepack fleet enroll wrote for this device"


class Package(msgspec.Struct, frozen=True, kw_only=True):
    """Package that a device is set up from.

    Attributes:
        device, tenant, broker: Name of the device, and address of its fleet.
        state_dir: The agent's state folder.
        trusted_keys: PEM of the public keys of accepted signers.
        authority: PEM of the fleet's certificate authority.
        root: The fleet's TUF root metadata.
        certificate, key: PEM of both, if made for the device; else "".
        sources: URLs of bundle sources other than the broker, as in the settings.
        enrol_at: URL of the fleet, which gives a certificate for a key that is made here; else "".
        enrol_authority: PEM of the authorities trusted at `enrol_at`; "" for this machine's.
        token: Token for enrolment: valid once, for this device only.
        expires_at: End of the token's validity.
    """

    device: str
    tenant: str
    broker: str
    state_dir: str = str(DEFAULT_STATE_DIR)
    trusted_keys: tuple[str, ...]
    authority: str = ""
    root: str = ""
    certificate: str = ""
    key: str = ""
    sources: tuple[str, ...] = ()
    enrol_at: str = ""
    enrol_authority: str = ""
    token: str = ""
    expires_at: Moment | None = None


_PACKAGES = Format("enrolment package", Package, Version(1, 0))


def check_free(path: Path) -> None:
    """Check that a path is free.

    Raises:
        DeviceError: Something does.
    """
    if path.exists():
        raise DeviceError(
            "the file exists already, and its content may still be needed",
            found_in=str(path),
            remedy="name another with --package",
        )


def write_package(path: Path, package: Package) -> None:
    """Write a package, readable by its owner only: the content lets anybody act as that device.

    Raises:
        DeviceError: The path exists, or cannot be written.
    """
    check_free(path)
    try:
        write_file(path, _PACKAGES.encode(package), mode=0o600)
    except OSError as error:
        raise DeviceError(
            f"cannot write the package: {error.strerror}", found_in=str(path)
        ) from error


def read_package(path: Path) -> Package:
    """Read a package.

    Raises:
        DeviceError: The file is not a package, or cannot be read.
    """
    try:
        content = read_regular(path, limit_bytes=_MAX_BYTES)
    except OSError as error:
        raise DeviceError(
            f"the package cannot be read: {error.strerror}", found_in=str(path), remedy=_REMEDY
        ) from error
    if content is None:
        raise DeviceError("there is no such file", found_in=str(path), remedy=_REMEDY)
    try:
        package = _PACKAGES.decode(content).value
        topics.check_name(package.device, "device id")
        topics.check_name(package.tenant, "tenant")
    except NewerVersionError as error:
        raise DeviceError(error.problem, found_in=str(path), remedy=error.remedy) from error
    except ValueError as error:
        raise DeviceError(
            f"this is not an enrolment package: {error}", found_in=str(path), remedy=_REMEDY
        ) from error
    return package

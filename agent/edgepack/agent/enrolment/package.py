"""The one file that a device is set up from: `edgepack fleet enroll` writes it.

It holds what a device must know of its fleet, and either its key and certificate or, where it can
reach the fleet, a token by which it gets a certificate for a key that it makes itself.
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
        state_dir: Where it keeps its state.
        trusted_keys: PEM of the public keys whose bundles it accepts.
        authority: PEM of the fleet's certificate authority.
        root: The fleet's TUF root metadata.
        certificate, key: PEM of both, where they were made for it; else "".
        sources: URLs of bundle sources other than the broker, as its settings name them.
        enrol_at: URL of the fleet, which gives a certificate for a key that is made here; else "".
        enrol_authority: PEM of whose certificates are believed there; "" for this machine's.
        token: Token for enrolment: valid once, for this device only.
        expires_at: Until when it can be used there.
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
    """Reject to write over what lies there.

    Raises:
        DeviceError: Something does.
    """
    if path.exists():
        raise DeviceError(
            "there is such a file already, and what it holds may still be needed",
            found_in=str(path),
            remedy="name another with --package",
        )


def write_package(path: Path, package: Package) -> None:
    """Write a package, readable by its owner only: what it holds lets anybody be that device.

    Raises:
        DeviceError: Something lies there already, or it cannot be written.
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
        DeviceError: It is none, or cannot be read.
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

"""Setting up a device from its package: `edgepack-agent enroll FILE`."""

import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from cryptography.hazmat.primitives.asymmetric import ec

from edgepack.agent.config import read_config
from edgepack.agent.enrolment.asking import ask_for_certificate
from edgepack.agent.enrolment.device_folder import (
    CONFIG_FILE,
    KEY_FILE,
    write_device_folder,
)
from edgepack.agent.enrolment.identity import (
    judge_certificate,
    key_pem,
    load_key,
    make_key,
    make_signing_request,
)
from edgepack.agent.enrolment.package import Package
from edgepack.agent.state.state_file import read_regular
from edgepack.durable import write_file
from edgepack.errors import DeviceError

NEXT_KEY_FILE = f".{KEY_FILE}.next"
"""A key that a certificate is being asked for: an answer that was lost is asked for once more with
the same key, since the token is good for that one alone."""


class Installed(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a device's set-up.

    Attributes:
        device: Its id.
        config: Path of its settings.
        before: Path of the settings that were put aside because of values other than the package's;
            None if no settings were put aside.
    """

    device: str
    config: Path
    before: Path | None = None


def install_package(
    package: Package,
    folder: Path,
    *,
    ask: Callable[[Package, str], str] = ask_for_certificate,
    wall: Callable[[], float] = time.time,
) -> Installed:
    """Set up a device.

    1. The folder is new, or holds the settings of this very device; sources can be used.
    2. The key is made here where the package has none, and noted before anybody is asked.
    3. The certificate comes from the package or the fleet, and is judged.
    4. All files are written, and the noted key is deleted.

    Args:
        package: Package written by `edgepack fleet enroll`.
        folder: Where the settings are to lie.
        ask: Gets a certificate for a signing request.
        wall: Clock, seconds since the epoch.

    Raises:
        DeviceError: The folder belongs to another device or cannot be written, a source is invalid,
            the fleet gives no certificate, or the certificate is not this device's.
    """
    # 1.
    _check_same_device(package, folder / CONFIG_FILE)
    _check_sources(package)
    is_made_here = bool(package.token)
    try:
        # 2.
        folder.mkdir(parents=True, exist_ok=True)
        key = _next_key(folder) if is_made_here else _given_key(package)
        # 3.
        certificate = package.certificate
        if is_made_here:
            certificate = ask(package, make_signing_request(key, package.device).decode())
        judge_certificate(
            certificate,
            key=key.public_key(),
            device=package.device,
            authority=package.authority.encode(),
            now=wall(),
        )
        # 4.
        config, before = write_device_folder(folder, package, certificate, key)
        (folder / NEXT_KEY_FILE).unlink(missing_ok=True)
    except OSError as error:
        raise DeviceError(
            f"cannot write the device's folder: {error.strerror}",
            found_in=str(folder),
            remedy="run it as a user who may, or name another with --folder",
        ) from error
    return Installed(device=package.device, config=config, before=before)


def _check_same_device(package: Package, config: Path) -> None:
    if not config.exists():
        return
    found = read_config(config)
    if (found.device, found.tenant) != (package.device, package.tenant):
        raise DeviceError(
            f"this folder is that of the device '{found.device}', and the package is of "
            f"'{package.device}'",
            found_in=str(config),
            remedy="name another with --folder",
        )


def _check_sources(package: Package) -> None:
    if package.sources:
        # Loaded where it is needed: urllib3 takes 0.06 s and 14 MB.
        from edgepack.agent.transfer.configured import check_urls

        check_urls(package.sources)


def _next_key(folder: Path) -> ec.EllipticCurvePrivateKey:
    path = folder / NEXT_KEY_FILE
    content = read_regular(path)
    if content is not None:
        return load_key(content, str(path))
    key = make_key()
    write_file(path, key_pem(key), mode=0o600)
    return key


def _given_key(package: Package) -> ec.EllipticCurvePrivateKey:
    if not package.key:
        raise DeviceError(
            "the package has neither a key nor a token",
            remedy=f"edgepack fleet enroll {package.device} --replace makes another package",
        )
    return load_key(package.key.encode(), "key of the package")

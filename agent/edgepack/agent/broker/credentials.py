"""Credentials of a device at the broker: its own certificate, or a password."""

import ssl
from pathlib import Path

from cryptography import x509

from edgepack.agent.config import BrokerConfig
from edgepack.errors import DeviceError


def tls_context(broker: BrokerConfig, device: str) -> ssl.SSLContext:
    """Load the TLS files.

    Args:
        broker: Names the files.
        device: Device id; the certificate must belong to this id, or the broker takes this device
            for another and drops the device's messages.

    Raises:
        DeviceError: A file is missing or no PEM, or the certificate is another device's.
    """
    named = (
        ("ca_file", broker.ca_file),
        ("cert_file", broker.cert_file),
        ("key_file", broker.key_file),
    )
    for key, path in named:
        if path and not Path(path).is_file():
            raise DeviceError(f"there is no file '{path}'", found_in=f"broker.{key}")
    try:
        context = ssl.create_default_context(cafile=broker.ca_file or None)
        if broker.cert_file:
            context.load_cert_chain(broker.cert_file, broker.key_file or None)
            _check_name(Path(broker.cert_file), device)
    except (ssl.SSLError, OSError, ValueError) as error:
        raise DeviceError(
            f"the TLS files cannot be used: {error}",
            found_in="broker.ca_file, broker.cert_file, broker.key_file",
            remedy="PEM files, and the key must belong to the certificate",
        ) from error
    return context


def _check_name(path: Path, device: str) -> None:
    certificate = x509.load_pem_x509_certificate(path.read_bytes())
    names = certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    name = str(names[0].value) if names else ""
    if name != device:
        raise DeviceError(
            f"the certificate is of '{name}', and this device is '{device}'",
            found_in=f"broker.cert_file, {path}",
            remedy=f"use the folder that edgepack fleet enroll wrote for '{device}', whole",
        )


def read_password(broker: BrokerConfig) -> str | None:
    """Return the password; None when the settings name none.

    Raises:
        DeviceError: Its file cannot be read.
    """
    if not broker.password_file:
        return None
    try:
        return Path(broker.password_file).read_text(encoding="utf-8").strip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DeviceError(
            f"cannot read the password: {error}", found_in="broker.password_file"
        ) from error

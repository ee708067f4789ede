"""Listening sockets of the API, with their certificate."""

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path

from edgepack.errors import FleetError


def is_loopback(host: str) -> bool:
    """Return True if an address is reached from this machine alone."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_tls(certificate: Path | None, key: Path | None) -> None:
    """Check that https can be served: before anything else starts.

    Raises:
        FleetError: A file is not named, or the files are unusable.
    """
    if certificate is None and key is None:
        return
    remedy = "edgepack fleet serve --tls-cert fleet.crt --tls-key fleet.key"
    if certificate is None or key is None:
        raise FleetError("https takes a certificate and its key", remedy=remedy)
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
    except OSError as error:  # which an error of TLS is, too
        raise FleetError(
            f"the certificate cannot be used: {error.strerror or error}",
            found_in=f"{certificate}, {key}",
            remedy=remedy,
        ) from error


@contextmanager
def open_listener(host: str, port: int) -> Iterator[socket.socket]:
    """Yield the socket of the API.

    Raises:
        FleetError: The port is taken, or the address is not of this machine.
    """
    try:
        listener = socket.create_server((host, port))
    except OSError as error:
        raise FleetError(
            f"the API cannot listen: {error.strerror or error}",
            found_in=f"{host}:{port}",
            remedy="choose another port with --port",
        ) from error
    with listener:
        yield listener

"""Settings of the export of metrics, for devices and fleets."""

from typing import Annotated
from urllib.parse import urlsplit

import msgspec

from edgepack.metrics.otlp import PATH

LOOPBACK, UNIX = "127.0.0.1", "unix:"


class OtlpConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the export by OTLP (HTTP, JSON).

    Attributes:
        endpoint: `http://` or `https://` URL of the collector; a URL without a path gets
            `/v1/metrics`. "" exports nothing.
        interval_s: Seconds between two exports.
        headers_file: File with further headers, a line `Name: value` each; "" for none.
        ca_file, cert_file, key_file: PEM files for TLS and a client certificate.
        proxy: URL of an HTTP proxy; "direct" for none; "" asks the environment.
        queue_bytes: Bound of the exports that wait for the collector, compressed.
    """

    endpoint: str = ""
    interval_s: Annotated[float, msgspec.Meta(ge=0.1, le=24 * 3600)] = 60.0
    headers_file: str = ""
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    proxy: str = ""
    queue_bytes: Annotated[int, msgspec.Meta(ge=4096, le=64 * 1024 * 1024)] = 256 * 1024

    @property
    def url(self) -> str:
        """URL of the requests.

        Raises:
            ValueError: The endpoint is no URL of http or https.
        """
        parts = urlsplit(self.endpoint)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{self.endpoint!r} is not a URL of http or https")
        return self.endpoint if parts.path.strip("/") else self.endpoint.rstrip("/") + PATH


class Address(msgspec.Struct, frozen=True):
    """Address of a listener: a path of a unix socket, or host and port."""

    path: str = ""
    host: str = LOOPBACK
    port: int = 0


def read_address(text: str) -> Address:
    """Return the address that a setting names: `9464`, `127.0.0.1:9464`, `unix:/run/metrics.sock`.

    Raises:
        ValueError: The text names no address.
    """
    if text.startswith(UNIX) and text.removeprefix(UNIX):
        return Address(path=text.removeprefix(UNIX))
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or not 0 <= int(port) < 65536:
        raise ValueError(f"{text!r} is no port, address or unix socket")
    return Address(host=host.strip("[]") or LOOPBACK, port=int(port))

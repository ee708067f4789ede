"""Where the broker is."""

from urllib.parse import urlsplit

from edgepack.errors import DeviceError

_PORTS = {"mqtt": 1883, "mqtts": 8883}


def parse_broker_url(url: str) -> tuple[str, int, bool]:
    """Host, port, and whether TLS is asked for.

    Raises:
        DeviceError: It is no `mqtt://` or `mqtts://` URL.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in _PORTS or not parts.hostname:
        raise DeviceError(
            f"{url!a} is no address of a broker",
            found_in="broker.url",
            remedy='url = "mqtts://broker.example.com:8883"',
        )
    return parts.hostname, port or _PORTS[parts.scheme], parts.scheme == "mqtts"

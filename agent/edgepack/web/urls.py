"""URLs: the host of a URL, and the part that may be shown."""

from typing import NamedTuple
from urllib.parse import urlsplit

from edgepack.text import printable

_SHOWN_LETTERS = 200
_PORTS = {"http": 80, "https": 443}


class Origin(NamedTuple):
    """The party that a URL belongs to, and that credentials are bound to (RFC 6454)."""

    scheme: str
    host: str
    port: int


NO_ORIGIN = Origin("", "", 0)


def origin_of(url: str) -> Origin:
    """Return the origin of a URL, with the usual port if the URL names none.

    Any other text has the origin `NO_ORIGIN`.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return NO_ORIGIN
    if parts.scheme not in _PORTS or not parts.hostname:
        return NO_ORIGIN
    return Origin(parts.scheme, parts.hostname.rstrip("."), port or _PORTS[parts.scheme])


def shown_url(url: str) -> str:
    """Return a URL for display: no credentials, no query."""
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
    except ValueError:
        return "?"
    return printable(f"{parts.scheme}://{host}{parts.path}"[:_SHOWN_LETTERS])

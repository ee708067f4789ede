"""URLs as they may be shown."""

from urllib.parse import urlsplit

from edgepack.text import printable

_SHOWN_LETTERS = 200


def shown_url(url: str) -> str:
    """A URL as it may be shown: no credentials, no query."""
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
    except ValueError:
        return "?"
    return printable(f"{parts.scheme}://{host}{parts.path}"[:_SHOWN_LETTERS])

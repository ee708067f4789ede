"""Sources of metadata: a folder, or a web server; the broker's source is in `edgepack.agent`."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from edgepack.errors import TrustError
from edgepack.trust.roles import ROOT, file_name
from edgepack.web.deadline import DEFAULT_LIMITS, WaitLimits

Fetch = Callable[[str, int | None, int], bytes | None]
"""Gives the metadata of a role: its name, the version (None: the newest), the bytes it may have.

It returns None when there is none. Nothing that it returns is believed before it was judged.
"""

_GONE = (403, 404)


def fetch_nothing(_role: str, _version: int | None, _max_bytes: int) -> None:
    """Return no metadata, so that known metadata is evaluated again."""


class FolderSource:
    """Metadata files in a folder, as `edgepack export` writes or a repository stores the files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, role: str, version: int | None, max_bytes: int) -> bytes | None:
        """Read a file.

        Raises:
            TrustError: The file is too long, or cannot be read.
        """
        path = self._folder / file_name(quote(role, ""), version)
        if role != ROOT and not path.exists():
            path = self._folder / file_name(quote(role, ""))
        try:
            with path.open("rb") as file:
                content = file.read(max_bytes + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise TrustError(
                f"metadata cannot be read: {error.strerror}", found_in=str(path)
            ) from error
        return check_length(content, max_bytes, str(path))


class HttpSource:
    """Metadata files below a URL.

    Args:
        url: URL of the files' folder.
        limits: Limits of the waits for a file.
    """

    def __init__(self, url: str, limits: WaitLimits = DEFAULT_LIMITS) -> None:
        if not url.startswith(("http://", "https://")):
            raise TrustError(
                f"{url[:200]!a} is not a URL of metadata", remedy="name one of http(s)"
            )
        self._url, self._limits = url.rstrip("/"), limits

    def __call__(self, role: str, version: int | None, max_bytes: int) -> bytes | None:
        """Fetch a file, up to its maximal size.

        Raises:
            TrustError: The server cannot be reached, fails, or sends more.
        """
        url = f"{self._url}/{file_name(quote(role, ''), version)}"
        # Imported where it is needed: urllib3 takes 0.06 s and 14 MB.
        from edgepack.web.http import Web, WebAccess, WebError, read_body

        try:
            with closing(Web(WebAccess(limits=self._limits))) as web, web.ask(url) as answer:
                if answer.status in _GONE:
                    return None
                if answer.status != 200:
                    raise TrustError(f"metadata: HTTP status {answer.status}", found_in=url)
                return read_body(answer, max_bytes, url)
        except WebError as error:
            raise TrustError(f"metadata cannot be fetched: {error}", found_in=url) from error


def source_of(place: str) -> Fetch:
    """Return metadata at a URL, or in a folder.

    Raises:
        TrustError: There is no such folder.
    """
    if place.startswith(("http://", "https://")):
        return HttpSource(place)
    if not Path(place).is_dir():
        raise TrustError("there is no folder of metadata", found_in=place)
    return FolderSource(Path(place))


def check_length(content: bytes, max_bytes: int, found_in: str) -> bytes:
    """Reject metadata that does not end.

    Raises:
        TrustError: The content is too long.
    """
    if len(content) > max_bytes:
        raise TrustError(f"metadata has more than {max_bytes} bytes", found_in=found_in)
    return content

"""The sources that the settings name."""

from pathlib import Path

from edgepack.agent.config import SourceConfig
from edgepack.agent.transfer.http_source import HttpSource
from edgepack.agent.transfer.source import Source, SourceError
from edgepack.agent.transfer.source_layout import check_template
from edgepack.errors import DeviceError
from edgepack.web.http import Web, WebAccess, shown_url
from edgepack.web.proxy import DIRECT, read_proxy


def check_source(source: SourceConfig) -> None:
    """Refuses a source that could never be used.

    Raises:
        DeviceError: Its URL, its proxy or a file that it names is none.
    """
    try:
        if not source.url.startswith(("https://", "http://")):
            raise ValueError("it is no https:// or http:// URL")  # noqa: TRY301
        check_template(source.url)
        if source.token_file and not source.url.startswith("https://"):
            raise ValueError("a token is sent by https alone")  # noqa: TRY301
        if source.proxy not in ("", DIRECT):
            read_proxy(source.proxy)
        open_source(source)
    except (ValueError, OSError) as error:
        raise DeviceError(
            f"a source cannot be used: {error}",
            found_in=f"transfer.sources: {shown_url(source.url)}",
            remedy='url = "https://files.example.com/{name}-{version}.edgepack"',
        ) from error


def open_source(source: SourceConfig) -> Source:
    """Makes a client of it; nothing is asked yet.

    Raises:
        SourceError: A file that it names cannot be used.
    """
    access = WebAccess(
        ca_file=source.ca_file,
        cert_file=source.cert_file,
        key_file=source.key_file,
        proxy=source.proxy,
    )
    headers = {}
    try:
        if source.token_file:
            token = Path(source.token_file).read_text(encoding="ascii").strip()
            headers["Authorization"] = f"Bearer {token}"
        return HttpSource(shown_url(source.url), Web(access), headers)
    except (OSError, ValueError) as error:
        raise SourceError(f"its files cannot be used: {error}") from error

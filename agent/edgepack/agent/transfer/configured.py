"""The sources that the settings name."""

from collections.abc import Iterable
from pathlib import Path

from edgepack.agent.config import SourceConfig
from edgepack.agent.transfer.http_source import HttpSource
from edgepack.agent.transfer.source import Source, SourceError
from edgepack.agent.transfer.source_layout import check_template
from edgepack.errors import DeviceError, TransferError
from edgepack.registry.client import Registry
from edgepack.registry.reference import SCHEME, read_reference
from edgepack.web.http import Web, WebAccess
from edgepack.web.proxy import DIRECT, read_proxy
from edgepack.web.urls import shown_url


def check_source(source: SourceConfig) -> None:
    """Reject a source that could never be used.

    Raises:
        DeviceError: The URL, the proxy or a named file is invalid.
    """
    try:
        check_template(template_of(source))
        if source.proxy not in ("", DIRECT):
            read_proxy(source.proxy)
        open_source(source)
    except (ValueError, OSError, TransferError) as error:
        raise DeviceError(
            f"a source cannot be used: {error}",
            found_in=f"transfer.sources: {shown_url(source.url)}",
            remedy='url = "https://files.example.com/{name}-{version}.edgepack"',
        ) from error


def check_urls(urls: Iterable[str]) -> None:
    """Reject sources by URL alone, if a URL could never be used.

    Raises:
        DeviceError: See `check_source`.
    """
    for url in urls:
        check_source(SourceConfig(url=url))


def open_source(source: SourceConfig) -> Source:
    """Make a client of a source; send no request yet.

    Raises:
        SourceError: A file named in the settings cannot be used.
    """
    access = WebAccess(
        ca_file=source.ca_file,
        cert_file=source.cert_file,
        key_file=source.key_file,
        proxy=source.proxy,
    )
    title = shown_url(source.url)
    try:
        if source.url.startswith(SCHEME):
            registry = Registry(read_reference(source.url), access=access)
            return HttpSource(title, registry.ask, registry.close)
        web, headers = Web(access), _headers(source)
    except (OSError, ValueError) as error:
        raise SourceError(f"its files cannot be used: {error}") from error
    except TransferError as error:
        raise SourceError(error.problem) from error
    return HttpSource(title, lambda url, more: web.ask(url, headers={**headers, **more}), web.close)


def template_of(source: SourceConfig) -> str:
    """Return the URL of a file or an archive, with words in braces.

    Raises:
        ValueError: The URL is invalid.
        TransferError: The URL does not name a registry.
    """
    if source.url.startswith(SCHEME):
        reference = read_reference(source.url)
        return f"https://{reference.host}/v2/{reference.repository}/blobs/sha256:{{sha256}}"
    if not source.url.startswith(("https://", "http://")):
        raise ValueError("it is not an https://, http:// or oci:// URL")
    return source.url


def _headers(source: SourceConfig) -> dict[str, str]:
    if not source.token_file:
        return {}
    if not source.url.startswith("https://"):
        raise ValueError("a token is sent by https alone")
    token = Path(source.token_file).read_text(encoding="ascii").strip()
    return {"Authorization": f"Bearer {token}"}

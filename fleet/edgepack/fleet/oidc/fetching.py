"""Requests to the provider: bounded, and no redirect is followed."""

import http.client
import urllib.error
import urllib.request
from typing import Any

import msgspec

from edgepack.errors import FleetError
from edgepack.fleet.oidc.settings import is_safe

TIMEOUT_S = 10.0
MAX_BYTES = 1024 * 1024


class _Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Nowhere: what is asked is asked of the provider alone."""


_OPENER = urllib.request.build_opener(_Stay())


def fetch(
    url: str, body: bytes | None = None, headers: dict[str, str] | None = None
) -> dict[str, Any]:
    """Asks for a JSON object.

    Raises:
        FleetError: Nobody answers, or something else.
    """
    if not is_safe(url):
        raise FleetError(f"the provider names {url[:80]!a}, which is no https:// URL")
    wanted = {"Accept": "application/json", **(headers or {})}
    request = urllib.request.Request(url, body, wanted)
    try:
        with _OPENER.open(request, timeout=TIMEOUT_S) as answer:
            content = answer.read(MAX_BYTES + 1)
    except urllib.error.HTTPError as error:
        error.close()
        raise FleetError(f"the provider answered HTTP status {error.code}", found_in=url) from error
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise FleetError(f"the provider does not answer: {reason}", found_in=url) from error
    if len(content) > MAX_BYTES:
        raise FleetError("the provider's answer is too long", found_in=url)
    try:
        return msgspec.json.decode(content, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FleetError("the provider's answer is no JSON object", found_in=url) from error

"""Requests to the provider: bounded in time and bytes, and no redirect is followed."""

from typing import Any

import msgspec

from edgepack.decoding import decode_json
from edgepack.errors import FleetError
from edgepack.fleet.oidc.settings import is_safe
from edgepack.web.deadline import WaitLimits, answer_within
from edgepack.web.http import Web, WebAccess, WebError, read_body

TIMEOUT_S = 10.0
"""For the whole answer, however slowly it comes."""
LIMITS = answer_within(TIMEOUT_S)
MAX_BYTES = 1024 * 1024


class ProviderAwayError(FleetError):
    """The provider gives no usable answer now; a later attempt may succeed."""


def check_endpoint(url: str) -> None:
    """Reject a URL of the provider that is not safe.

    Raises:
        FleetError: See `is_safe`.
    """
    if not is_safe(url):
        raise FleetError(f"the provider names {url[:80]!a}, which is not an https:// URL")


def fetch(
    url: str,
    body: bytes | None = None,
    headers: dict[str, str] | None = None,
    limits: WaitLimits = LIMITS,
) -> dict[str, Any]:
    """Ask the provider for a JSON object.

    Raises:
        ProviderAwayError: Nobody answers in time, or the server has an error.
        FleetError: The provider rejects the request, or its URL is not safe.
    """
    check_endpoint(url)
    web = Web(WebAccess(limits=limits))
    try:
        with web.ask(
            url,
            method="GET" if body is None else "POST",
            headers={"Accept": "application/json", **(headers or {})},
            body=body,
            redirects=0,
        ) as answer:
            status = answer.status
            content = read_body(answer, MAX_BYTES, url) if status == 200 else b""
    except WebError as error:
        raise ProviderAwayError(f"the provider gives no answer: {error}", found_in=url) from error
    finally:
        web.close()
    if status != 200:
        kind = ProviderAwayError if status >= 500 or status == 429 else FleetError
        raise kind(f"the provider answered HTTP status {status}", found_in=url)
    try:
        return decode_json(content, dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProviderAwayError(
            "the provider's answer is not a JSON object", found_in=url
        ) from error

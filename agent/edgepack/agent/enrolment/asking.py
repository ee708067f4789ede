"""Asking the fleet for a certificate over HTTP, with a token that is good once."""

import http.client
import ssl
import time
from contextlib import closing
from ipaddress import ip_address
from urllib.parse import urlsplit

import msgspec

from edgepack.agent.enrolment.package import Package
from edgepack.decoding import decode_json
from edgepack.errors import DeviceError
from edgepack.text import printable
from edgepack.web.deadline import WaitLimits, answer_within

PATH = "/v1/enrolments"
MAX_ANSWER_BYTES = 64 * 1024
LIMITS = answer_within(30.0)
_MAX_TEXT = 400


class CertificateRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Request of a device for a certificate.

    Attributes:
        signing_request: PEM of a certificate signing request of its key.
    """

    signing_request: str


class IssuedCertificate(msgspec.Struct, frozen=True, kw_only=True):
    """Response to a certificate request.

    Attributes:
        certificate: PEM.
    """

    certificate: str


class _Refusal(msgspec.Struct, frozen=True, kw_only=True):
    problem: str
    remedy: str | None = None


def check_url(url: str) -> None:
    """Reject a place where a token would be read on its way.

    Raises:
        DeviceError: The URL is not a URL of http or https, or is plain http to another machine.
    """
    try:
        parts = urlsplit(url)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_url = False
    if not is_url or parts.username or parts.query or parts.fragment:
        raise DeviceError(
            f"{url[:200]!a} is not a URL of a fleet", remedy="--enrol-at https://fleet.example:8600"
        )
    if parts.scheme == "http" and not _is_loopback(parts.hostname or ""):
        raise DeviceError(
            "a token that goes over plain http can be read on its way, and used by others",
            found_in=url,
            remedy="serve the fleet by https: edgepack fleet serve --tls-cert … --tls-key …",
        )


def ask_for_certificate(package: Package, signing_request: str, limits: WaitLimits = LIMITS) -> str:
    """Return PEM of a certificate for the key of a request; nothing of the answer is believed yet.

    Raises:
        DeviceError: The fleet cannot be reached, refuses, or the token is over.
    """
    check_url(package.enrol_at)
    if package.expires_at is not None and time.time() > package.expires_at:
        raise DeviceError(
            "the token in the package is over",
            remedy=f"edgepack fleet enroll {package.device} --replace makes another package",
        )
    body = msgspec.json.encode(CertificateRequest(signing_request=signing_request))
    headers = {"Authorization": f"Bearer {package.token}", "Content-Type": "application/json"}
    # Imported where it is needed: urllib3 takes 0.06 s and 14 MB.
    from edgepack.web.http import Web, WebAccess, WebError, read_body
    from edgepack.web.proxy import DIRECT

    try:
        web = Web(WebAccess(ca_pem=package.enrol_authority, proxy=DIRECT, limits=limits))
    except (ssl.SSLError, ValueError) as error:
        raise DeviceError(
            f"the authority of the fleet's https cannot be used: {error}",
            found_in="enrol_authority of the package",
        ) from error
    url = package.enrol_at.rstrip("/") + PATH
    try:
        # No redirect is followed, so the token goes to the fleet only.
        with (
            closing(web),
            web.ask(url, method="POST", headers=headers, body=body, redirects=0) as answer,
        ):
            content = read_body(answer, MAX_ANSWER_BYTES, url)
    except WebError as error:
        raise DeviceError(
            f"the fleet cannot be asked for a certificate: {error}",
            found_in=package.enrol_at,
            remedy="try again where it is in reach: the token can still be used",
        ) from error
    return _read(answer.status, content, package.enrol_at)


def _read(status: int, content: bytes, url: str) -> str:
    if status != http.client.OK:
        try:
            said = decode_json(content, _Refusal)
        except (msgspec.DecodeError, RecursionError) as error:
            raise DeviceError(
                f"the fleet gives no certificate: HTTP status {status}", found_in=url
            ) from error
        remedy = printable(said.remedy[:_MAX_TEXT]) if said.remedy else None
        problem = printable(said.problem[:_MAX_TEXT])
        raise DeviceError(f"the fleet refuses: {problem}", found_in=url, remedy=remedy)
    try:
        return decode_json(content, IssuedCertificate).certificate
    except (msgspec.DecodeError, RecursionError) as error:
        raise DeviceError("the answer is not from a fleet of this version", found_in=url) from error


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"

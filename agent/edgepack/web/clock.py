"""Certificates that are not valid by this machine's clock: the clock may be wrong.

A device without a battery for its clock starts in the past, and finds no certificate valid.
"""

import datetime
import ssl

from cryptography import x509

_NOT_YET, _EXPIRED = 9, 10
"""Of OpenSSL: X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED."""


def describe_invalid_time(error: BaseException | None, now: float) -> str:
    """Return why a peer's certificate is not valid now, with the clock; "" for other errors.

    Args:
        error: From the TLS handshake.
        now: This machine's clock, seconds since the epoch.
    """
    code = error.verify_code if isinstance(error, ssl.SSLCertVerificationError) else 0
    if code == _NOT_YET:
        return (
            "its certificate is not valid yet by this machine's clock, "
            f"which shows {_time(now)}: set the clock"
        )
    if code == _EXPIRED:
        return (
            "its certificate has expired by this machine's clock, "
            f"which shows {_time(now)}: renew the certificate, or set the clock"
        )
    return ""


def describe_own_certificate(certificate: x509.Certificate, now: float) -> str:
    """Return why this machine's own certificate is not valid by its clock; "" if valid.

    Args:
        certificate: The certificate that this machine presents.
        now: This machine's clock, seconds since the epoch.
    """
    begins = certificate.not_valid_before_utc.timestamp()
    ends = certificate.not_valid_after_utc.timestamp()
    if now > ends:
        return (
            f"this device's certificate expired on {_time(ends)}, and its clock shows "
            f"{_time(now)}: enrol the device again, or set the clock"
        )
    if now >= begins:
        return ""
    return (
        f"this device's certificate is valid from {_time(begins)} on, and its clock shows "
        f"{_time(now)}: set the clock"
    )


def _time(at: float) -> str:
    return datetime.datetime.fromtimestamp(at, datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")

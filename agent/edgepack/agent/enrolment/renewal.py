"""Renewal of a device's certificate: requests a newer certificate, and installs the answer.

The key stays the same, so the certificate is replaced in a single step, bundles encrypted to the
key still open, and an answer is useless to anybody else. A failure is reported and retried with the
next report; the device serves on.
"""

import logging
from collections.abc import Callable
from pathlib import Path

from cryptography import x509

from edgepack.agent.config import BrokerConfig
from edgepack.agent.enrolment.device_folder import AUTHORITY_FILE
from edgepack.agent.enrolment.identity import (
    RENEWED_AT,
    ends_on,
    is_renewal_due,
    judge_certificate,
    left_s,
    load_key,
    make_signing_request,
    renewed_authority,
)
from edgepack.durable import write_file
from edgepack.errors import DeviceError
from edgepack.web.clock import describe_own_certificate
from edgepack.wire.reports import Renewal

log = logging.getLogger(__name__)

WARNED_AT = RENEWED_AT / 2
"""A device tells people of it when so much of its certificate's life is left, and it has no newer
one: the fleet was asked for half of the time that there was."""


def make_keeper(
    broker: BrokerConfig, device: str, *, wall: Callable[[], float]
) -> "CertificateKeeper | None":
    """Return the keeper of the device's certificate; None without a certificate that the fleet can
    renew.

    A certificate of another kind of key is somebody else's, and a file that holds the key too must
    not be replaced.
    """
    if not broker.cert_file or broker.key_file in ("", broker.cert_file):
        return None
    try:
        return CertificateKeeper(broker, device, wall=wall)
    except DeviceError as error:
        log.info("the certificate is not looked after because=%s", error.problem)
        return None


class CertificateKeeper:
    """Looks after the certificate that the broker's settings name.

    Args:
        broker: The settings with certificate, key and authority; without an authority, the file
            next to the certificate, as enrolment wrote it.
        device: Device id.
        wall: Clock, seconds since the epoch.
        write: Writes a small file durably.

    Raises:
        DeviceError: A file cannot be read.
    """

    def __init__(
        self,
        broker: BrokerConfig,
        device: str,
        *,
        wall: Callable[[], float],
        write: Callable[[Path, bytes], None] = write_file,
    ) -> None:
        self._path, self._device = Path(broker.cert_file), device
        self._wall, self._write = wall, write
        try:
            self._pem = self._path.read_text(encoding="ascii")
            self._certificate = x509.load_pem_x509_certificate(self._pem.encode())
            # Whoever signed the broker's certificate: this device's is of the fleet's authority.
            beside = self._path.with_name(AUTHORITY_FILE)
            authority = beside if beside.is_file() else Path(broker.ca_file)
            self._authority = authority.read_bytes() if authority.is_file() else b""
            self._authority_file = authority
            key_path = Path(broker.key_file)
            self._key = load_key(key_path.read_bytes(), str(key_path))
        except (OSError, ValueError) as error:
            raise DeviceError(
                f"the device's certificate cannot be read: {error}", found_in=broker.cert_file
            ) from error
        self._request = ""
        self._problem = ""

    @property
    def renewal(self) -> Renewal | None:
        """Request for renewal; None while the certificate is valid long enough."""
        if not self._authority or not is_renewal_due(self._certificate, self._wall()):
            return None
        if not self._request:
            self._request = make_signing_request(self._key, self._device).decode()
        return Renewal(certificate=self._pem, signing_request=self._request)

    @property
    def trouble(self) -> str:
        """Problem that needs a person, as a sentence; "" without a problem."""
        left = left_s(self._certificate, self._wall())
        if left > 0 and (invalid := describe_own_certificate(self._certificate, self._wall())):
            return invalid
        begins, ends = self._certificate.not_valid_before_utc, self._certificate.not_valid_after_utc
        if left >= WARNED_AT * (ends - begins).total_seconds() and not self._problem:
            return ""
        ends_when = "has ended" if left <= 0 else "ends"
        because = self._problem or "the fleet has not sent a newer one"
        return f"this device's certificate {ends_when} on {ends_on(self._certificate)}: {because}"

    def accept_authority(self, pem: str) -> bool:
        """Accept the renewed certificate of the authority; return True if the file was written.

        Raises:
            DeviceError: The certificate is not of an authority that this device trusts.
        """
        renewed = renewed_authority(pem, self._authority)
        if renewed is None:
            return False
        try:
            self._write(self._authority_file, renewed)
        except OSError as error:
            log.warning("%s cannot be written: %s", self._authority_file, error)
            return False
        self._authority = renewed
        log.info("the certificate of the fleet's authority was renewed")
        return True

    def accept(self, pem: str) -> bool:
        """Take a newer certificate that the fleet sent.

        Returns:
            True if the certificate is installed now; False if the same certificate was installed
            already.

        Raises:
            DeviceError: The certificate is not this device's, or not newer; nothing is stored.
        """
        found = judge_certificate(
            pem,
            key=self._key.public_key(),
            device=self._device,
            authority=self._authority,
            now=self._wall(),
        )
        if found == self._certificate:
            return False
        if found.not_valid_after_utc <= self._certificate.not_valid_after_utc:
            raise DeviceError("the received certificate ends no later than the installed")
        try:
            self._write(self._path, pem.encode())
        except OSError as error:
            self._problem = f"a newer one came, and cannot be written: {error.strerror}"
            log.warning("%s cannot be written: %s", self._path, error)
            return False
        self._pem, self._certificate = pem, found
        self._problem = self._request = ""
        log.info("the certificate was renewed, until %s", ends_on(found))
        return True

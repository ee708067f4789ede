"""The fleet's certificate authority: certificates for devices, the broker and the controller."""

import datetime
import ipaddress
import re
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from edgepack.agent.enrolment.identity import (
    ends_on,
    is_issued_by,
    is_renewal_due,
    key_pem,
    left_s,
    load_key,
    make_key,
    make_signing_request,
    name_of,
)
from edgepack.bundle.certificates import UNREADABLE
from edgepack.durable import write_file
from edgepack.errors import FleetError
from edgepack.fleet.data_folder import CONTROLLER_CERTIFICATE
from edgepack.fleet.documents.devices import Revocations
from edgepack.fleet.enrolment.certificates import is_due, key_id_of, read_certificate
from edgepack.wire.reports import Renewal

AUTHORITY_DAYS = 3650
CERTIFICATE_DAYS = 825
_CLOCK_SKEW = datetime.timedelta(days=1)  # boards without a battery start with an old clock

NAME = "edgepack fleet"
MAX_HOST = 253
_LABEL = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)")
CA_FILE, CA_KEY_FILE, CRL_FILE = "ca.crt", "ca.key", "ca.crl"


class Authority:
    """A certificate authority in a folder; created at first use.

    Attributes:
        ca_file: PEM of its certificate, for distribution.

    Args:
        folder: Folder of key and certificate.
        certificate_days: Validity of signed certificates, days.
    """

    def __init__(self, folder: Path, *, certificate_days: int = CERTIFICATE_DAYS) -> None:
        self._folder, self._days = folder, certificate_days
        self.ca_file = folder / CA_FILE
        key_file = folder / CA_KEY_FILE
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not self.ca_file.exists() or not key_file.exists():
            key = make_key()
            write_file(key_file, key_pem(key), mode=0o600)
            write_file(self.ca_file, _pem(_make_ca(key, NAME)))
        try:
            loaded = serialization.load_pem_private_key(key_file.read_bytes(), None)
            self._certificate = x509.load_pem_x509_certificate(self.ca_file.read_bytes())
        except (OSError, ValueError, TypeError) as error:
            raise FleetError(
                f"the fleet's CA cannot be read: {error}",
                found_in=str(folder),
                remedy="restore the folder from a copy, or every device must enrol again",
            ) from error
        self._crl_file = folder / CRL_FILE
        if not isinstance(loaded, ec.EllipticCurvePrivateKey):
            raise FleetError("the fleet's CA key is not an ECDSA key", found_in=str(key_file))
        self._key = loaded
        if not self._crl_file.exists():
            self._write_revocations(())

    @property
    def pem(self) -> str:
        """Certificate of the authority."""
        return _pem(self._certificate).decode()

    def renew(self, *, days: int = AUTHORITY_DAYS) -> None:
        """Replace the certificate by a certificate with the same name and key that lasts longer.

        All signed certificates and lists of revoked certificates stay valid under both:
        devices and brokers may trust the earlier certificate until the new certificate arrives.
        """
        revoked = tuple(self._revoked())
        self._certificate = _make_ca(self._key, NAME, days)
        write_file(self.ca_file, _pem(self._certificate))
        self._write_revocations(revoked)

    @property
    def ends_at(self) -> float:
        """End of the certificate, seconds since the epoch."""
        return self._certificate.not_valid_after_utc.timestamp()

    def sign_client(self, request_pem: str, name: str) -> str:
        """Return a client certificate (PEM) with the common name `name`.

        Args:
            request_pem: The signing request; only its key is used.
            name: Device id, or a controller's name.

        Raises:
            FleetError: The request is none, its signature is wrong, or its key is not P-256.
        """
        key = self._requested_key(request_pem)
        builder = self._builder(name, key).add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
        )
        return _pem(builder.sign(self._key, hashes.SHA256())).decode()

    def key_id_of(self, request_pem: str) -> str:
        """Name the key of a signing request; see `CertificateFacts`.

        Raises:
            FleetError: As `sign_client` does.
        """
        return key_id_of(self._requested_key(request_pem))

    def check_renewal(self, asked: Renewal, device: str, now: float) -> None:
        """Reject a renewal without the certificate's key, or before its time.

        1. This authority issued the certificate, to that device.
        2. The certificate is neither expired nor revoked.
        3. The last third of its life has begun.
        4. The request is signed by its key. The request need not be fresh: repeating a request
           yields a certificate for a key that the sender lacks.

        Args:
            asked: The device's request.
            device: Its id, by its topic.
            now: Seconds since the epoch.

        Raises:
            FleetError: A condition does not hold.
        """
        # 1.
        try:
            certificate = x509.load_pem_x509_certificate(asked.certificate.encode())
        except UNREADABLE as error:
            raise FleetError(f"the certificate to renew cannot be read: {error}") from error
        if not is_issued_by(certificate, (self._certificate,)) or name_of(certificate) != device:
            raise FleetError("the certificate to renew is not one that this device got here")
        # 2.
        if left_s(certificate, now) <= 0:
            raise FleetError(f"the certificate to renew has ended on {ends_on(certificate)}")
        revoked = self._revoked()
        if revoked.get_revoked_certificate_by_serial_number(certificate.serial_number) is not None:
            raise FleetError("the certificate to renew is revoked")
        # 3.
        if not is_renewal_due(certificate, now):
            raise FleetError(f"the certificate to renew lasts until {ends_on(certificate)}")
        # 4.
        if self._requested_key(asked.signing_request) != certificate.public_key():
            raise FleetError("the request is of another key than the certificate to renew")

    def _requested_key(self, request_pem: str) -> ec.EllipticCurvePublicKey:
        try:
            request = x509.load_pem_x509_csr(request_pem.encode())
            key, is_signed = request.public_key(), request.is_signature_valid
        except UNREADABLE as error:
            raise FleetError(f"the certificate request cannot be read: {error}") from error
        if not is_signed or not (
            isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name == "secp256r1"
        ):
            raise FleetError("the certificate request is not one of an ECDSA P-256 key")
        return key

    def revoke(self, serial: str) -> None:
        """Add a certificate (its serial number, hex) to the list of revoked certificates."""
        revoked = list(self._revoked())
        number = int(serial, 16)
        if all(one.serial_number != number for one in revoked):
            builder = x509.RevokedCertificateBuilder().serial_number(number)
            revoked.append(builder.revocation_date(datetime.datetime.now(datetime.UTC)).build())
            self._write_revocations(revoked)

    def revoke_certificate(self, pem: str) -> None:
        """Revoke a certificate without a stored serial number.

        Raises:
            FleetError: The file is not a certificate, is the CA's own, or belongs to another CA.
        """
        try:
            certificate = x509.load_pem_x509_certificate(pem.encode())
            is_ours = is_issued_by(certificate, (self._certificate,))
        except ValueError:
            is_ours = False
        if not is_ours:
            raise FleetError(
                "this is not a certificate that the fleet's CA gave to a device",
                remedy="give device.crt of the folder that the device was set up from",
            )
        self.revoke(read_certificate(pem).serial)

    def revocations(self) -> Revocations:
        """Return the list of revoked certificates."""
        pem = self._crl_file.read_text()
        return Revocations(pem=pem, certificates=len(self._revoked()))

    def _revoked(self) -> x509.CertificateRevocationList:
        try:
            return x509.load_pem_x509_crl(self._crl_file.read_bytes())
        except (OSError, ValueError) as error:
            raise FleetError(
                f"the list of revoked certificates cannot be read: {error}",
                found_in=str(self._crl_file),
                remedy="restore it from a copy: without it removed devices would be let in again",
            ) from error

    def _write_revocations(self, revoked: Iterable[x509.RevokedCertificate]) -> None:
        # It holds as long as the CA: a list that has expired would keep every device out.
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self._certificate.subject)
            .last_update(datetime.datetime.now(datetime.UTC) - _CLOCK_SKEW)
            .next_update(self._certificate.not_valid_after_utc)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
        )
        for one in revoked:
            builder = builder.add_revoked_certificate(one)
        signed = builder.sign(self._key, hashes.SHA256())
        write_file(self._crl_file, signed.public_bytes(serialization.Encoding.PEM))

    def controller_files(self, name: str, *, is_further: bool = False) -> tuple[Path, Path]:
        """Return certificate and key of a controller, made once next to the CA and renewed in time;
        paths.

        Args:
            name: The controller's.
            is_further: Whether the controller is not the first on the folder.
        """
        certificate = self._folder / (f"{name}.crt" if is_further else CONTROLLER_CERTIFICATE)
        key_file = certificate.with_suffix(".key")
        if not certificate.exists() or not key_file.exists():
            write_file(key_file, key_pem(make_key()), mode=0o600)
            certificate.unlink(missing_ok=True)
        if not certificate.exists() or is_due(certificate.read_text(), time.time()):
            key = load_key(key_file.read_bytes(), str(key_file))
            request = make_signing_request(key, name).decode()
            write_file(certificate, self.sign_client(request, name).encode())
        return certificate, key_file

    def sign_server(self, key: ec.EllipticCurvePrivateKey, hosts: Sequence[str]) -> str:
        """Return a server certificate (PEM) for at least a single host name or address.

        Raises:
            FleetError: An entry is neither a host name nor an address.
        """
        # Clients look at the alternative names; a common name has no room for a long host's.
        builder = self._builder("edgepack broker", key.public_key())
        builder = builder.add_extension(
            x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False
        ).add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        return _pem(builder.sign(self._key, hashes.SHA256())).decode()

    def _builder(self, name: str, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(_subject(name))
            .issuer_name(self._certificate.subject)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _CLOCK_SKEW)
            .not_valid_after(now + datetime.timedelta(days=self._days))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
        )


def controller_certificates(folder: Path) -> tuple[Path, ...]:
    """Return the files of the controllers' certificates in the authority's folder."""
    return tuple(path for path in sorted(folder.glob("*.crt")) if path.name != CA_FILE)


def _make_ca(
    key: ec.EllipticCurvePrivateKey, name: str, days: int = AUTHORITY_DAYS
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    public = key.public_key()
    return (
        x509.CertificateBuilder()
        .subject_name(_subject(name))
        .issuer_name(_subject(name))
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .sign(key, hashes.SHA256())
    )


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        if len(host) <= MAX_HOST and all(map(_LABEL.fullmatch, host.split("."))):
            return x509.DNSName(host)
    raise FleetError(
        f"{host[:MAX_HOST]!r} is not a name or address of a host",
        found_in="--host",
        remedy="--host broker.example --host 192.0.2.7",
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)

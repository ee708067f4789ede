"""The fleet's certificate authority: certificates for devices, the broker and the controller."""

import datetime
import ipaddress
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from edgepack.durable import write_file
from edgepack.errors import FleetError
from edgepack.fleet.data_folder import CONTROLLER_CERTIFICATE
from edgepack.fleet.documents.devices import Revocations

AUTHORITY_DAYS = 3650
CERTIFICATE_DAYS = 825
_CLOCK_SKEW = datetime.timedelta(days=1)  # boards without a battery start with an old clock

NAME = "edgepack fleet"
MAX_HOST = 253
_LABEL = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)")
CA_FILE, CA_KEY_FILE, CRL_FILE = "ca.crt", "ca.key", "ca.crl"


def make_key() -> ec.EllipticCurvePrivateKey:
    """A new ECDSA P-256 key."""
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """A private key as PEM (PKCS #8, in the clear: its file is for its owner only)."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def make_signing_request(key: ec.EllipticCurvePrivateKey, name: str) -> bytes:
    """PEM of a request for a certificate; the key stays where it was made."""
    request = x509.CertificateSigningRequestBuilder().subject_name(_subject(name))
    return request.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


class Authority:
    """A certificate authority in a folder; made when it is first asked for.

    Attributes:
        ca_file: PEM of its certificate, for whoever must trust it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
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
            raise FleetError("the fleet's CA key is no ECDSA key", found_in=str(key_file))
        self._key = loaded
        if not self._crl_file.exists():
            self._write_revocations(())

    @property
    def pem(self) -> str:
        """Its certificate."""
        return _pem(self._certificate).decode()

    def sign_client(self, request_pem: str, name: str) -> str:
        """A client certificate (PEM) with the common name `name`.

        Args:
            request_pem: The signing request; only its key is taken from it.
            name: Device id, or a controller's name.

        Raises:
            FleetError: The request is none, its signature is wrong, or its key is not P-256.
        """
        try:
            request = x509.load_pem_x509_csr(request_pem.encode())
        except ValueError as error:
            raise FleetError(f"the certificate request cannot be read: {error}") from error
        key = request.public_key()
        if not request.is_signature_valid or not (
            isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name == "secp256r1"
        ):
            raise FleetError("the certificate request is not one of an ECDSA P-256 key")
        builder = self._builder(name, key).add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
        )
        return _pem(builder.sign(self._key, hashes.SHA256())).decode()

    def revoke(self, serial: str) -> None:
        """Puts a certificate (its serial number, hex) on the list of those that are revoked."""
        revoked = list(self._revoked())
        number = int(serial, 16)
        if all(one.serial_number != number for one in revoked):
            builder = x509.RevokedCertificateBuilder().serial_number(number)
            revoked.append(builder.revocation_date(datetime.datetime.now(datetime.UTC)).build())
            self._write_revocations(revoked)

    def revoke_certificate(self, pem: str) -> None:
        """The same for a certificate of which the number was not kept.

        Raises:
            FleetError: It is no certificate, the CA's own, or another CA issued it.
        """
        if not self._issued(pem):
            raise FleetError(
                "this is no certificate that the fleet's CA gave to a device",
                remedy="give device.crt of the folder that the device was set up from",
            )
        self.revoke(serial_of(pem))

    def _issued(self, pem: str) -> bool:
        try:
            certificate = x509.load_pem_x509_certificate(pem.encode())
            certificate.verify_directly_issued_by(self._certificate)
        except (ValueError, TypeError, InvalidSignature):
            return False
        return certificate != self._certificate

    def revocations(self) -> Revocations:
        """The list of revoked certificates."""
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
        """Certificate and key of a controller, made once beside the CA; paths.

        Args:
            name: The controller's.
            is_further: Whether it is not the first one that works on the folder.
        """
        certificate = self._folder / (f"{name}.crt" if is_further else CONTROLLER_CERTIFICATE)
        key_file = certificate.with_suffix(".key")
        if not certificate.exists() or not key_file.exists():
            key = make_key()
            write_file(key_file, key_pem(key), mode=0o600)
            request = make_signing_request(key, name).decode()
            write_file(certificate, self.sign_client(request, name).encode())
        return certificate, key_file

    def sign_server(self, key: ec.EllipticCurvePrivateKey, hosts: Sequence[str]) -> str:
        """A server certificate (PEM) for host names and addresses, at least one.

        Raises:
            FleetError: One can be neither.
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
            .not_valid_after(now + datetime.timedelta(days=CERTIFICATE_DAYS))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
        )


def _make_ca(key: ec.EllipticCurvePrivateKey, name: str) -> x509.Certificate:
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
        .not_valid_after(now + datetime.timedelta(days=AUTHORITY_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .sign(key, hashes.SHA256())
    )


def serial_of(certificate_pem: str) -> str:
    """The serial number of a certificate, hex."""
    return f"{x509.load_pem_x509_certificate(certificate_pem.encode()).serial_number:x}"


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        if len(host) <= MAX_HOST and all(map(_LABEL.fullmatch, host.split("."))):
            return x509.DNSName(host)
    raise FleetError(
        f"{host[:MAX_HOST]!r} is no name or address of a host",
        found_in="--host",
        remedy="--host broker.example --host 192.0.2.7",
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)

"""Certificates for brokers and devices, by authorities that tests make."""

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

Authority = tuple[x509.Name, ec.EllipticCurvePrivateKey]


def make_authority(folder: Path, name: str) -> Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    certificate = _certificate(subject, key, (subject, key), is_authority=True)
    (folder / f"{name}.pem").write_bytes(certificate)
    return subject, key


def issue(
    folder: Path,
    file: str,
    authority: Authority,
    name: str,
    *,
    begins_in_s: float = -3600,
    lasts_s: float | None = None,
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    (folder / f"{file}.pem").write_bytes(
        _certificate(
            subject, key, authority, is_authority=False, begins_in_s=begins_in_s, lasts_s=lasts_s
        )
    )
    (folder / f"{file}.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )


def self_signed(key: ec.EllipticCurvePrivateKey, name: str) -> str:
    """Return a self-signed certificate (PEM) of a key."""
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    return _certificate(subject, key, (subject, key), is_authority=False).decode()


def sign_until(
    pki: Path, key: ec.EllipticCurvePrivateKey, name: str, *, left_s: float, life_days: float = 300
) -> str:
    """Return a device's old certificate (PEM) by the fleet's CA in `pki`.

    Args:
        pki: Holds `ca.key` and `ca.crt`.
        key: The device's.
        name: The device's id.
        left_s: Remaining validity.
        life_days: Total validity.
    """
    ca_key = serialization.load_pem_private_key((pki / "ca.key").read_bytes(), None)
    assert isinstance(ca_key, ec.EllipticCurvePrivateKey)
    issuer = x509.load_pem_x509_certificate((pki / "ca.crt").read_bytes()).subject
    end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=left_s)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(end - datetime.timedelta(days=life_days))
        .not_valid_after(end)
        .sign(ca_key, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _certificate(
    subject: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    authority: Authority,
    *,
    is_authority: bool,
    begins_in_s: float = -3600,
    lasts_s: float | None = None,
) -> bytes:
    lasts_s = 3600 + abs(begins_in_s) if lasts_s is None else lasts_s
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(authority[0])
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + datetime.timedelta(seconds=begins_in_s))
        .not_valid_after(now + datetime.timedelta(seconds=begins_in_s + lasts_s))
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority[1].public_key()),
            critical=False,
        )
    )
    if is_authority:
        usage = x509.KeyUsage(
            digital_signature=False,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=True,
            crl_sign=True,
            encipher_only=False,
            decipher_only=False,
        )
        builder = builder.add_extension(usage, critical=True)
    else:
        name = str(subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)[0].value)
        hosts = {"127.0.0.1", *([name] if name.startswith("127.") else [])}
        addresses = [x509.IPAddress(ipaddress.ip_address(host)) for host in sorted(hosts)]
        builder = builder.add_extension(x509.SubjectAlternativeName(addresses), critical=False)
    certificate = builder.sign(authority[1], hashes.SHA256())
    return certificate.public_bytes(serialization.Encoding.PEM)

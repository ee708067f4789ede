"""The agent and brokers that are away, refuse it, or want certificates."""

import datetime
import ipaddress
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from edgepack.bundle.keys import PrivateKey
from tests.simulators import broker as mosquitto
from tests.simulators.broker import Broker, free_port
from tests.simulators.controller import Controller
from tests.simulators.device import DEVICE, Device

Keys = tuple[PrivateKey, Path]


def wait_for_line(device: Device, text: str, timeout_s: float = 20) -> str:
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        for line in device.said().splitlines():
            if text in line:
                return line
        time.sleep(0.05)
    raise AssertionError(f"{text!r} was not said:\n{device.said()}")


@pytest.fixture
def needs_mosquitto() -> None:
    if not mosquitto.is_installed():
        pytest.skip("mosquitto is not installed")


@contextmanager
def running(device: Device) -> Iterator[None]:
    device.start()
    try:
        yield
    finally:
        if device.is_running:
            device.kill()


@pytest.mark.usefixtures("needs_mosquitto")
def test_an_agent_waits_for_a_broker_that_is_not_there_yet_and_says_so(
    tmp_path: Path, release_keys: Keys
) -> None:
    port = free_port()
    device = Device(tmp_path / "device", f"mqtt://127.0.0.1:{port}", release_keys[1])
    with running(device):
        line = wait_for_line(device, "cannot reach the broker")
        assert "WARNING" in line
        assert f"broker 127.0.0.1:{port}" in line
        assert "Connection refused" in line
        time.sleep(2)
        assert device.said().count("cannot reach the broker") == 1
        with Broker(tmp_path, port=port):
            wait_for_line(device, "connected to 127.0.0.1")
            assert device.stop() == 0


@pytest.mark.usefixtures("needs_mosquitto")
def test_wrong_credentials_are_named_and_right_ones_let_it_in(
    tmp_path: Path, release_keys: Keys
) -> None:
    passwords = tmp_path / "passwords"
    passwords.touch(mode=0o600)
    subprocess.run(
        ["mosquitto_passwd", "-b", str(passwords), DEVICE, "right"], check=True, timeout=10
    )
    settings = ("allow_anonymous false", f"password_file {passwords}")
    secret = tmp_path / "secret"
    refused = "refuses this device's user name, password or certificate"
    with Broker(tmp_path, settings=settings) as broker:
        device = Device(
            tmp_path / "device",
            broker.url,
            release_keys[1],
            broker_lines=(f'password_file = "{secret}"',),
        )
        for password, said in (("wrong", refused), ("right", "connected to")):
            secret.write_text(f"{password}\n")
            with running(device):
                wait_for_line(device, said)
                time.sleep(1.5)  # Long enough for a second attempt.
                assert device.stop() == 0
    assert "wrong" not in device.said()
    assert device.said().count("WARNING") == 1


@pytest.mark.usefixtures("needs_mosquitto")
def test_a_certificate_lets_the_device_in_and_an_unknown_authority_is_refused(
    tmp_path: Path, release_keys: Keys
) -> None:
    authority = make_authority(tmp_path, "ca")
    make_authority(tmp_path, "stranger")
    issue(tmp_path, "server", authority, "127.0.0.1")
    issue(tmp_path, "device", authority, DEVICE)
    listener = (
        f"cafile {tmp_path}/ca.pem",
        f"certfile {tmp_path}/server.pem",
        f"keyfile {tmp_path}/server.key",
        "require_certificate true",
        "use_identity_as_username true",
    )
    with Broker(tmp_path, listener=listener) as broker:
        url = broker.url.replace("mqtt:", "mqtts:")
        for ca, said in (("ca", "connected to"), ("stranger", "certificate verify failed")):
            lines = (
                f'ca_file = "{tmp_path}/{ca}.pem"',
                f'cert_file = "{tmp_path}/device.pem"',
                f'key_file = "{tmp_path}/device.key"',
            )
            device = Device(tmp_path / ca, url, release_keys[1], broker_lines=lines)
            with running(device):
                wait_for_line(device, said)
                assert device.stop() == 0


def test_the_last_will_marks_a_killed_agent_offline(
    tmp_path: Path, mosquitto_broker: Broker, release_keys: Keys
) -> None:
    controller = Controller(mosquitto_broker.port)
    device = Device(tmp_path / "device", mosquitto_broker.url, release_keys[1])
    with running(device):
        controller.wait_for(lambda report: report.state == "IDLE")
        boot = controller.reports[-1].boot
    until = time.monotonic() + 15
    while controller.reports[-1].online:
        assert time.monotonic() < until
        time.sleep(0.05)
    assert controller.reports[-1].boot == boot
    controller.close()


def test_a_second_agent_on_the_same_state_folder_is_refused(
    tmp_path: Path, mosquitto_broker: Broker, release_keys: Keys
) -> None:
    device = Device(tmp_path / "device", mosquitto_broker.url, release_keys[1])
    with running(device):
        wait_for_line(device, "connected to")
        second = Device(tmp_path / "device", mosquitto_broker.url, release_keys[1])
        second.log = tmp_path / "second.log"
        second.start()
        assert second.wait() == 1
        assert "error: another agent (process " in second.said()
        assert "try: stop it first" in second.said()
        device.stop()


Authority = tuple[x509.Name, ec.EllipticCurvePrivateKey]


def make_authority(folder: Path, name: str) -> Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    certificate = _certificate(subject, key, (subject, key), is_authority=True)
    (folder / f"{name}.pem").write_bytes(certificate)
    return subject, key


def issue(folder: Path, file: str, authority: Authority, name: str) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    (folder / f"{file}.pem").write_bytes(_certificate(subject, key, authority, is_authority=False))
    (folder / f"{file}.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )


def _certificate(
    subject: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    authority: Authority,
    *,
    is_authority: bool,
) -> bytes:
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(authority[0])
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
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
        address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        builder = builder.add_extension(x509.SubjectAlternativeName([address]), critical=False)
    certificate = builder.sign(authority[1], hashes.SHA256())
    return certificate.public_bytes(serialization.Encoding.PEM)

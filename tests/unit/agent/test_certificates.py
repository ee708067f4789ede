"""A device's certificate is renewed in time; foreign certificates are only reported."""

import time
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from msgspec.structs import replace

from edgepack.agent.broker.inbox import Arrived, Connected
from edgepack.agent.config import BrokerConfig
from edgepack.agent.enrolment.identity import key_pem, make_key
from edgepack.agent.enrolment.renewal import CertificateKeeper, make_keeper
from edgepack.errors import DeviceError
from edgepack.fleet.enrolment.authority import Authority
from edgepack.wire import topics
from edgepack.wire.messages import encode
from edgepack.wire.orders import Certificate
from tests.simulators.certificates import sign_until
from tests.simulators.world import World
from tests.unit.agent.test_daemon import MemoryPublisher, make_daemon

DAY_S = 86400.0


class Device:
    """A device with a certificate of 300 days, partly elapsed."""

    def __init__(self, folder: Path, *, left_days: float) -> None:
        self.authority = Authority(folder / "pki")
        self.key = make_key()
        self.pem = self.sign(left_days)
        self.file = folder / "device.crt"
        self.file.write_text(self.pem)
        (folder / "device.key").write_bytes(key_pem(self.key))
        self.config = BrokerConfig(
            url="mqtts://localhost",
            ca_file=str(self.authority.ca_file),
            cert_file=str(self.file),
            key_file=str(folder / "device.key"),
        )
        self.keeper = CertificateKeeper(self.config, "cam-1", wall=time.time)

    def sign(
        self,
        left_days: float,
        *,
        name: str = "cam-1",
        key: ec.EllipticCurvePrivateKey | None = None,
        pki: Path | None = None,
    ) -> str:
        folder = pki or self.authority.ca_file.parent
        return sign_until(folder, key or self.key, name, left_s=left_days * DAY_S)


@pytest.mark.parametrize(
    ("left_days", "asks", "warns"), [(150, False, False), (90, True, False), (40, True, True)]
)
def test_it_asks_in_the_last_third_and_warns_in_the_last_sixth(
    tmp_path: Path, left_days: float, asks: bool, warns: bool
) -> None:
    keeper = Device(tmp_path, left_days=left_days).keeper
    assert (keeper.renewal is not None) == asks
    assert bool(keeper.trouble) == warns
    if warns:
        assert "this device's certificate ends on 2" in keeper.trouble
        assert keeper.trouble.endswith("the fleet has not sent a newer one")


def test_what_it_asks_is_what_the_fleet_renews(tmp_path: Path) -> None:
    device = Device(tmp_path, left_days=90)
    asked = device.keeper.renewal
    assert asked is not None
    device.authority.check_renewal(asked, "cam-1", time.time())
    newer = device.authority.sign_client(asked.signing_request, "cam-1")
    assert device.keeper.accept(newer)
    assert device.file.read_text() == newer
    assert device.keeper.renewal is None
    assert not device.keeper.accept(newer), "it comes twice: it is there already"
    assert CertificateKeeper(device.config, "cam-1", wall=time.time).renewal is None


def test_a_certificate_that_is_not_this_devices_changes_nothing(tmp_path: Path) -> None:
    device = Device(tmp_path, left_days=90)
    foreign = Authority(tmp_path / "foreign").ca_file.parent
    ca_key = device.authority.ca_file.read_text()
    for pem, problem in (
        (device.sign(500, pki=foreign), "the fleet's authority did not issue"),
        (device.sign(500, name="cam-2"), "is of 'cam-2', and this is 'cam-1'"),
        (device.sign(500, key=make_key()), "is of another key"),
        (device.sign(-1), "has ended on"),
        (device.sign(89), "ends no later than the installed"),
        (ca_key, "the fleet's authority did not issue"),
        ("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "cannot be read"),
        ("\x1b[2J", "cannot be read"),
        ("A" * 9000, "too long"),
    ):
        with pytest.raises(DeviceError, match=problem):
            device.keeper.accept(pem)
        assert device.file.read_text() == device.pem
        assert device.keeper.renewal is not None


def test_a_device_that_cannot_write_its_certificate_reports_that_and_serves_on(
    tmp_path: Path, world: World
) -> None:
    def write(_path: Path, _content: bytes) -> None:
        raise OSError(30, "Read-only file system")

    device = Device(tmp_path, left_days=90)
    keeper = CertificateKeeper(device.config, "cam-1", wall=time.time, write=write)
    publisher = MemoryPublisher()
    daemon = make_daemon(world, publisher, keeper=keeper)
    daemon.turn(Connected())
    asked = publisher.reports()[-1].renewal
    assert asked is not None
    newer = device.authority.sign_client(asked.signing_request, "cam-1")
    topic = topics.certificate("default", "cam-1")
    daemon.turn(Arrived(topic=topic, payload=encode(Certificate(certificate=newer))))
    daemon.turn(Connected())
    (warning,) = publisher.reports()[-1].warnings
    assert warning.endswith("cannot be written: Read-only file system")
    assert publisher.renewed == 0
    assert publisher.reports()[-1].renewal == asked


def test_an_agent_takes_its_next_certificate_and_drops_what_is_none(
    tmp_path: Path, world: World
) -> None:
    device, publisher = Device(tmp_path, left_days=90), MemoryPublisher()
    daemon = make_daemon(world, publisher, keeper=device.keeper)
    daemon.turn(Connected())
    asked = publisher.reports()[-1].renewal
    assert asked is not None
    topic = topics.certificate("default", "cam-1")
    foreign = device.sign(500, key=make_key())
    for payload in (b"{", b'{"v":9}', encode(Certificate(certificate=foreign)), b"\xff" * 300):
        daemon.turn(Arrived(topic=topic, payload=payload))
    assert daemon.agent.dropped["certificate not accepted"] == 4
    assert device.file.read_text() == device.pem
    newer = device.authority.sign_client(asked.signing_request, "cam-1")
    daemon.turn(Arrived(topic=topic, payload=encode(Certificate(certificate=newer))))
    assert x509.load_pem_x509_certificate(device.file.read_bytes()).public_key() == (
        device.key.public_key()
    )
    assert publisher.renewed == 1
    assert publisher.reports()[-1].renewal is None


def test_files_that_are_no_certificate_are_refused_at_the_start(tmp_path: Path) -> None:
    device = Device(tmp_path, left_days=90)
    device.file.write_text("nothing")
    with pytest.raises(DeviceError, match="the device's certificate cannot be read"):
        CertificateKeeper(device.config, "cam-1", wall=time.time)


def test_what_no_fleet_gave_out_is_left_alone(tmp_path: Path) -> None:
    device = Device(tmp_path, left_days=90)
    assert make_keeper(device.config, "cam-1", wall=time.time) is not None
    both = tmp_path / "both.pem"
    both.write_text(device.pem + key_pem(device.key).decode())
    rsa_key = rsa.generate_private_key(65537, 2048)
    (tmp_path / "rsa.key").write_bytes(
        rsa_key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    for changes in (
        {"cert_file": "", "key_file": ""},
        {"cert_file": str(both), "key_file": ""},
        {"cert_file": str(both), "key_file": str(both)},
        {"key_file": str(tmp_path / "rsa.key")},
    ):
        assert make_keeper(replace(device.config, **changes), "cam-1", wall=time.time) is None


def test_a_broker_with_a_certificate_of_another_authority_keeps_none_from_being_renewed(
    tmp_path: Path,
) -> None:
    device = Device(tmp_path, left_days=90)
    foreign = Authority(tmp_path / "foreign")
    config = replace(device.config, ca_file=str(foreign.ca_file))
    (tmp_path / "ca.crt").write_text(device.authority.pem)
    keeper = CertificateKeeper(config, "cam-1", wall=time.time)
    asked = keeper.renewal
    assert asked is not None
    with pytest.raises(DeviceError, match="the fleet's authority did not issue"):
        keeper.accept(foreign.sign_client(asked.signing_request, "cam-1"))
    assert keeper.accept(device.authority.sign_client(asked.signing_request, "cam-1"))

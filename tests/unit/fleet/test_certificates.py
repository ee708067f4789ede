"""Certificates of a fleet: by a token, renewed in time, and never without the key."""

import time
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from msgspec.structs import replace

from edgepack.agent.enrolment.identity import make_key, make_signing_request
from edgepack.errors import FleetError
from edgepack.fleet.controller import renewals
from edgepack.fleet.database import audit, certificates, devices
from edgepack.fleet.database.audit import Wanted
from edgepack.fleet.enrolment.authority import Authority
from edgepack.fleet.enrolment.certificates import read_certificate
from edgepack.fleet.identity.issue import give_token, is_token, revoke_all, use_token
from edgepack.wire import topics
from edgepack.wire.messages import decode
from edgepack.wire.orders import Certificate
from edgepack.wire.reports import Renewal
from tests.simulators.certificates import sign_until
from tests.simulators.signing import CERTIFICATE
from tests.unit.fleet.world import World, says

DAY_S = 86400.0


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "pki")


def request(key: ec.EllipticCurvePrivateKey, name: str = "cam-1") -> str:
    return make_signing_request(key, name).decode()


def key_of(pem: str) -> object:
    return x509.load_pem_x509_certificate(pem.encode()).public_key()


def asks(
    authority: Authority,
    key: ec.EllipticCurvePrivateKey,
    *,
    left_days: float = 20,
    name: str = "cam-1",
) -> Renewal:
    folder = authority.ca_file.parent
    held = sign_until(folder, key, name, left_s=left_days * DAY_S)
    return Renewal(certificate=held, signing_request=request(key))


def answers(world: World, device: str = "cam-1") -> list[str]:
    topic = topics.certificate("t", device)
    return [decode(sent, Certificate).certificate for to, sent in world.sent if to == topic]


def test_a_token_is_good_for_one_device_and_one_key(world: World, authority: Authority) -> None:
    world.enroll("cam-1")
    key, now = make_key(), time.time()
    with world.store.transaction() as session:
        token, expires_at = give_token(session, "cam-1", 60, now)
        assert expires_at == now + 60
        assert is_token(session, token, now)
        assert not is_token(session, token + "x", now)
        assert not is_token(session, "x" * 10_000, now)
        assert not is_token(session, token, now + 61)
        pem = use_token(session, authority, token, request(key, "cam-666"), now)
    assert key_of(pem) == key.public_key()
    subject = x509.load_pem_x509_certificate(pem.encode()).subject.rfc4514_string()
    assert subject == "CN=cam-1", "the name is the token's, whatever the request says"
    with world.store.transaction() as session:
        again = use_token(session, authority, token, request(key), now)
        assert again == pem, "an answer that was lost is given again"
        with pytest.raises(FleetError, match="used already, for another key"):
            use_token(session, authority, token, request(make_key()), now)
        with pytest.raises(FleetError, match="not a token to enrol with"):
            use_token(session, authority, token, request(key), now + 61)
        (row,) = devices.find_devices(session, ("cam-1",))
        assert row.certificate == read_certificate(pem).serial
        (entry,) = audit.entries(session, Wanted(action="certificate.issue"), 10)
        assert entry.device == "cam-1"


def test_a_bad_request_uses_no_token_up(world: World, authority: Authority) -> None:
    world.enroll("cam-1")
    now = time.time()
    with world.store.transaction() as session:
        token, _ = give_token(session, "cam-1", 60, now)
        other_curve = make_signing_request(ec.generate_private_key(ec.SECP384R1()), "a").decode()
        for bad in ("", "\0", other_curve, "-----BEGIN CERTIFICATE REQUEST-----\n"):
            with pytest.raises(FleetError, match="certificate request"):
                use_token(session, authority, token, bad, now)
        assert use_token(session, authority, token, request(make_key()), now)


def test_another_token_of_a_device_ends_the_first_and_time_makes_sense(world: World) -> None:
    world.enroll("cam-1")
    with world.store.transaction() as session:
        first, _ = give_token(session, "cam-1", 60, 1.0)
        second, _ = give_token(session, "cam-1", 60, 1.0)
        assert not is_token(session, first, 2.0)
        assert is_token(session, second, 2.0)
        for valid_s in (0, -1, float("nan"), 1e9):
            with pytest.raises(FleetError, match="is good for up to 720 hours"):
                give_token(session, "cam-1", valid_s, 1.0)


def test_a_device_gets_its_next_certificate_and_the_same_when_it_asks_again(
    world: World, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renewals, "ANSWER_AGAIN_AFTER_S", 0.0)
    world.enroll("cam-1")
    key = make_key()
    asked = asks(authority, key)
    for _ in range(2):
        world.hear("cam-1", replace(says("IDLE"), renewal=asked))
    first, second = answers(world)
    assert first == second
    assert key_of(first) == key.public_key()
    with world.store.reading() as session:
        known = certificates.of_device(session, "cam-1")
        (entry,) = audit.entries(session, Wanted(action="certificate.renew"), 10)
    assert [row.pem for row in known] == [CERTIFICATE, first, asked.certificate]
    assert entry.device == "cam-1"


def test_a_device_that_goes_on_asking_is_not_answered_each_time(
    world: World, authority: Authority
) -> None:
    world.enroll("cam-1")
    asked = asks(authority, make_key())
    for _ in range(5):
        world.hear("cam-1", replace(says("IDLE"), renewal=asked))
    assert len(answers(world)) == 1


def test_nothing_is_renewed_for_who_has_not_the_key_or_before_its_time(
    world: World, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renewals, "ANSWER_AGAIN_AFTER_S", 0.0)
    world.enroll("cam-1")
    key, thief = make_key(), make_key()
    good = asks(authority, key)
    revoked = asks(authority, key)
    authority.revoke(read_certificate(revoked.certificate).serial)
    foreign = Authority(tmp_path / "foreign")
    bad = [
        replace(good, signing_request=request(thief)),
        asks(authority, key, left_days=200),
        asks(authority, key, left_days=-1),
        asks(authority, key, name="cam-2"),
        asks(foreign, key),
        revoked,
        replace(good, certificate=authority.pem),
        replace(good, certificate="-----BEGIN CERTIFICATE-----\n"),
        replace(good, signing_request="\0"),
        Renewal(certificate="", signing_request=""),
    ]
    for asked in bad:
        world.hear("cam-1", replace(says("IDLE"), renewal=asked))
    assert answers(world) == []
    dropped = world.inbox.quotas.dropped("cam-1")
    assert dropped == {"certificate not renewed": len(bad)}
    with world.store.reading() as session:
        assert [row.pem for row in certificates.of_device(session, "cam-1")] == [CERTIFICATE]
    world.hear("cam-1", replace(says("IDLE"), renewal=good))
    assert len(answers(world)) == 1


def test_all_certificates_of_a_device_end_with_it(world: World, authority: Authority) -> None:
    world.enroll("cam-1")
    asked = asks(authority, make_key())
    world.hear("cam-1", replace(says("IDLE"), renewal=asked))
    (newer,) = answers(world)
    with world.store.transaction() as session:
        token, _ = give_token(session, "cam-1", 60, 1.0)
        (row,) = devices.find_devices(session, ("cam-1",))
        revoke_all(session, lambda: authority, row)
        assert not is_token(session, token, 2.0)
        assert certificates.of_device(session, "cam-1") == ()
    revoked = x509.load_pem_x509_crl(authority.revocations().pem.encode())
    ended = {f"{one.serial_number:x}" for one in revoked}
    assert ended > {read_certificate(pem).serial for pem in (newer, asked.certificate)}


def test_a_controllers_own_certificate_is_renewed_with_its_key(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "pki")
    certificate, key_file = authority.controller_files("edgepack-controller-1")
    key, pem = key_file.read_bytes(), certificate.read_text()
    authority.controller_files("edgepack-controller-1")
    assert certificate.read_text() == pem
    loaded = make_key()
    short = sign_until(tmp_path / "pki", loaded, "edgepack-controller-1", left_s=DAY_S)
    certificate.write_text(short)
    authority.controller_files("edgepack-controller-1")
    assert key_file.read_bytes() == key
    assert key_of(certificate.read_text()) == key_of(pem)
    assert certificate.read_text() != short

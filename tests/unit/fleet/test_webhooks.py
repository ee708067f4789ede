"""Webhooks: allowed URLs, signatures, and discarded messages."""

from pathlib import Path

import pytest

from edgepack.errors import FleetError
from edgepack.fleet.database import audit, records, webhooks
from edgepack.fleet.database.audit import Entry
from edgepack.fleet.database.schema import WebhookRow
from edgepack.fleet.database.store import open_store
from edgepack.fleet.database.webhooks import DELAYS_S, Message
from edgepack.fleet.webhooks import sending
from edgepack.fleet.webhooks.sending import find_addresses, read_target
from edgepack.wire.telemetry import Event


def test_a_message_is_signed_as_the_standards_own_example() -> None:
    # From the reference implementations of standardwebhooks.com.
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    body = b'{"test": 2432232314}'
    signed = sending.sign(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body)
    assert signed == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_each_secret_is_another_one_and_signs() -> None:
    one, two = sending.make_secret(), sending.make_secret()
    assert sending.sign(one, "m", 1, b"") != sending.sign(two, "m", 1, b"")
    with pytest.raises(ValueError, match="no secret"):
        sending.sign("whsec_?", "m", 1, b"")


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.0.1", "169.254.169.254", "100.64.0.1",
        "0.0.0.0", "224.0.0.1", "255.255.255.255", "::1", "::", "fe80::1%eth0", "fd00::1",
        "ff02::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "2002:7f00:1::",
        "64:ff9b::7f00:1", "64:ff9b::a00:1", "fec0::1", "feff::1", "::127.0.0.1", "64:ff9b:1::1",
        "2001:0:7f00:1::", "198.18.0.1", "192.0.0.8", "240.0.0.1", "192.88.99.1", "3fff::1",
    ],
)  # fmt: skip
def test_no_message_goes_into_a_private_network_one_address_is_enough(address: str) -> None:
    target = read_target("https://hooks.example/", is_unsafe=False)

    def resolve(_host: str, _port: int) -> tuple[str, ...]:
        return ("93.184.215.14", address)

    with pytest.raises(FleetError, match=r"hooks.example is in a private network"):
        find_addresses(target, is_unsafe=False, resolve=resolve)
    assert find_addresses(target, is_unsafe=True, resolve=resolve) == ("93.184.215.14", address)


def test_public_addresses_are_what_is_connected_to() -> None:
    target = read_target("https://hooks.example:8443/a?b=c", is_unsafe=False)
    found = ("93.184.215.14", "2606:2800:21f:cb07:6820:80da:af6b:8b2c")
    assert find_addresses(target, is_unsafe=False, resolve=lambda *_: found) == found
    assert (target.title, target.path, target.is_tls) == ("hooks.example:8443", "/a?b=c", True)
    with pytest.raises(FleetError, match="has no address"):
        find_addresses(target, is_unsafe=False, resolve=lambda *_: ())


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("", "not an https:// URL"),
        ("https://", "not an https:// URL"),
        ("file:///etc/passwd", "not an https:// URL"),
        ("https://a b/", "not an https:// URL"),
        ("https://hooks.example/\r\nX:y", "control letters"),
        ("https://hooks.example:x/", "is not a URL"),
        ("https://u:p@hooks.example/", "no user"),
        ("https://hooks.example/#there", "no user, fragment"),
        ("http://hooks.example/", "without TLS"),
    ],
)
def test_what_is_no_url_for_a_webhook_is_refused(url: str, problem: str) -> None:
    with pytest.raises(FleetError, match=problem):
        read_target(url, is_unsafe=False)


class Told:
    """A database with a single webhook."""

    def __init__(self, folder: Path, types: tuple[str, ...]) -> None:
        self.store = open_store(f"sqlite:///{folder / 'fleet.db'}")
        with self.store.transaction() as session:
            audit.note(session, 1.0, Entry(action="rollout.start", rollout="r0"))
            row = WebhookRow(
                name="chat",
                key="msg_1",
                url="https://hooks.example/",
                secret=sending.make_secret(),
                types=types,
                is_unsafe=False,
                made_at=1.0,
                made_by="token",
            )
            webhooks.add(session, row, 1.0)

    def waiting(self) -> list[Message]:
        with self.store.reading() as session:
            return list(webhooks.waiting(session, webhooks.find(session, "chat")))

    def fail(self, message: Message, now: float = 10.0) -> None:
        with self.store.transaction() as session:
            webhooks.note_failed(session, "chat", message, "no", now)

    def row(self) -> WebhookRow:
        with self.store.reading() as session:
            return webhooks.find(session, "chat")


def became(state: str) -> Event:
    return Event(at=3.0, kind="transition", bundle="digits", to_state=state, because="too hot")


def happened(told: Told, *events: Event) -> None:
    with told.store.transaction() as session:
        records.add_device_events(session, [("cam-1", event) for event in events], 5.0)


def test_it_tells_what_it_was_made_for_from_then_on_in_order(tmp_path: Path) -> None:
    told = Told(tmp_path, ("rollout", "device.failed"))
    happened(told, became("COMMITTED"), became("ROLLED_BACK"))
    with told.store.transaction() as session:
        audit.note(session, 9.0, Entry(action="rollout.wave", rollout="r1"))
        audit.note(session, 8.0, Entry(action="rollout.breach", rollout="r1"))  # a clock went back
        audit.note(session, 7.0, Entry(action="device.move", device="cam-1"))
    found = told.waiting()
    assert [message.type for message in found] == [
        "device.failed",
        "rollout.wave",
        "rollout.breach",
    ]
    for message in found:
        with told.store.transaction() as session:
            webhooks.note_delivered(session, "chat", message)
    assert told.waiting() == []
    assert told.row().delivered == 3


def test_a_message_is_given_up_after_the_last_delay_and_the_next_one_comes(tmp_path: Path) -> None:
    told = Told(tmp_path, ("rollout",))
    with told.store.transaction() as session:
        for name in ("r1", "r2"):
            audit.note(session, 9.0, Entry(action="rollout.start", rollout=name))
    first, second = told.waiting()
    waited = []
    for _ in range(len(DELAYS_S)):
        told.fail(first)
        waited.append(told.row().next_at - 10.0)
    assert tuple(waited) == DELAYS_S
    assert told.waiting() == [first, second]
    told.fail(first)
    assert told.waiting() == [second]
    assert (told.row().skipped, told.row().because) == (1, "no")
    with told.store.transaction() as session:
        webhooks.note_delivered(session, "chat", second)
    row = told.row()
    assert (row.delivered, row.failures, row.because, row.next_at) == (1, 0, "", 0.0)


def test_too_many_that_wait_are_skipped_the_oldest_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "MAX_WAITING", 3)
    told = Told(tmp_path, ("rollout", "device.failed"))
    with told.store.transaction() as session:
        for number in range(5):
            audit.note(session, 9.0, Entry(action="rollout.start", rollout=f"r{number}"))
            audit.note(session, 9.0, Entry(action="device.move", device="cam-1"))
    happened(told, *[became("REJECTED")] * 2)
    told.fail(told.waiting()[0])
    names = [message.data["rollout"] for message in told.waiting() if message.source == "a"]
    assert names == ["r2", "r3", "r4"]
    assert sum(message.source == "e" for message in told.waiting()) == 2
    assert told.row().skipped == 2

"""The controller drops malformed, unknown and harmful messages, and continues."""

import json
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepack.agent.enrolment.identity import make_key, make_signing_request
from edgepack.errors import FleetError
from edgepack.fleet.broker.access import BrokerAccess
from edgepack.fleet.broker.link import Link
from edgepack.fleet.controller.quotas import QUOTAS, Quotas
from edgepack.fleet.data_folder import CONTROLLER
from edgepack.fleet.database import inventory, records
from edgepack.wire import topics
from edgepack.wire.batches import Session
from edgepack.wire.messages import MAX_MESSAGE_BYTES, Message, decode, encode
from edgepack.wire.signed import BatchSigner
from edgepack.wire.telemetry import Event
from edgepack.wire.transfers import Need
from tests.simulators.signing import sign_with
from tests.unit.fleet.world import NEW, World, says, telemetry_window


def test_devices_that_are_not_enrolled_are_ignored(world: World) -> None:
    for kind in topics.UP_KINDS:
        world.hear("mallory", says("IDLE"), kind)
    assert world.inbox.counters == {"not_enrolled": len(topics.UP_KINDS)}


IDLE = says("IDLE", boot="b")


def newcomer(device: str) -> BatchSigner:
    """Return the signer of an unknown device, which requests a certificate of its key."""
    key = make_key()
    request = make_signing_request(key, device).decode()
    return BatchSigner(
        tenant="t", device=device, boot="b", sign=sign_with(key), signing_request=request
    )


def test_auto_enrolment_ignores_an_id_that_differs_in_case_only(tmp_path: Path) -> None:
    world = World(tmp_path, auto_enroll=True)
    for name in ("cam-5", "CAM-5", CONTROLLER.upper() + "x", "cam-6"):
        world.inbox.receive(
            topics.up("t", name, "reported"), newcomer(name).sign("reported", [IDLE])
        )
        world.controller.turn()
    with world.store.transaction() as session:
        found = inventory.list_devices(session)
    assert [device.device for device in found] == ["cam-5", "cam-6"]
    assert world.inbox.counters["not_enrolled"] == 2
    world.store.close()


def test_auto_enrolment_takes_in_whoever_reports_and_only_well_formed(tmp_path: Path) -> None:
    world = World(tmp_path, auto_enroll=True)
    world.hear("new", b"no report")
    world.hear("new", says("IDLE"), "need")
    world.inbox.receive(topics.up("t", "new", "reported"), encode(says("IDLE")))
    world.controller.turn()
    assert world.inbox.counters == {
        "without_a_certificate_request": 1,
        "not_enrolled": 1,
        "malformed": 1,
    }
    signer = newcomer("new")
    topic = topics.up("t", "new", "reported")
    world.inbox.receive(topic, signer.sign("reported", [IDLE]))
    world.controller.turn()
    (offered,) = (payload for to, payload in world.sent if to == topics.session("t", "new"))
    assert signer.accept(decode(offered, Session))
    world.inbox.receive(topic, signer.sign("reported", [IDLE]))
    world.controller.turn()
    assert world.inbox.counters["reported"] == 1
    with world.store.transaction() as session:
        (device,) = inventory.list_devices(session)
    assert (device.device, device.group) == ("new", "auto")
    world.store.close()


MALFORMED = [
    b"",
    b"\xff\xfe",
    b"{}",
    b"[]",
    b"null",
    b"[" * 100_000,
    b'{"v":1,"online":true,"at":1}',
    b'{"v":1,"online":true,"at":1,"sequence":' + b"9" * 400 + b"}",
    b'{"v":1,"online":true,"at":1,"sequence":-5}',
    b'{"v":1,"digest":"../../etc","files":[{"sha256":"x","chunk_count":-1,"missing":"AAAA"}]}',
    b'{"v":1,"at":NaN,"kind":"transition","bundle":"x"}',
]


@pytest.mark.parametrize("kind", topics.UP_KINDS)
def test_malformed_messages_are_dropped_counted_and_harm_nobody(
    world: World, kind: topics.UpKind
) -> None:
    world.enroll("a")
    world.enroll("b")
    name = world.start()
    world.look()
    for number, payload in enumerate(MALFORMED):
        dropped = world.inbox.counters.total()
        world.inbox.receive(topics.up("t", "a", kind), payload)
        world.controller.turn()
        assert world.inbox.counters.total() > dropped, payload
        world.hear("b", says("DOWNLOADING", 1))
        assert world.inbox.counters["reported"] == number + 1
    world.hear("b", says("COMMITTED", 1, active=NEW))
    assert world.view(name).counts == {"OFFERED": 1, "COMMITTED": 1}


PAYLOADS = st.binary(max_size=300) | st.text(max_size=300).map(str.encode)


@settings(max_examples=5)
@given(payloads=st.lists(PAYLOADS, min_size=6, max_size=6))
def test_no_payload_whatever_stops_the_controller(
    tmp_path_factory: pytest.TempPathFactory, payloads: list[bytes]
) -> None:
    world = World(tmp_path_factory.mktemp("fuzz"))
    world.enroll("a")
    for sequence, payload in enumerate(payloads, 1):
        for kind in topics.UP_KINDS:
            world.inbox.receive(topics.up("t", "a", kind), payload)
        world.inbox.receive("ep/1/t/d/a/up/reported/more", payload)
        world.inbox.receive("something/else", payload)
        world.hear("a", says("IDLE", sequence))
        reported = world.reported("a")
        assert reported is not None
        assert reported.sequence == sequence
    world.store.close()


def test_a_message_that_breaks_the_database_is_dropped_alone(world: World) -> None:
    world.enroll("a")
    beyond = Event(at=1.0, kind="warning", bundle="x")
    with world.store.transaction() as session:
        records.add_device_events(session, [("a", beyond)], 1.0)
    world.inbox.receive(
        topics.up("t", "a", "telemetry"),
        encode(telemetry_window()).replace(b'"window_s":30.0', b'"window_s":1e400'),
    )
    world.hear("a", says("IDLE"))
    with world.store.transaction() as session:
        assert inventory.list_devices(session)[0].online


def test_the_controllers_own_name_and_impossible_names_are_refused(world: World) -> None:
    with pytest.raises(FleetError, match="is a name of controllers"):
        world.enroll("edgepack-controller")
    for name in ("", "a/b", "+", "#", "a b", "x" * 65):
        with pytest.raises(FleetError, match="must be 1 to 64 of"):
            world.enroll(name)


def test_one_device_that_says_too_much_is_cut_off_and_counted_and_takes_nothing_from_others(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.enroll("loud")
    world.enroll("quiet")
    event = encode(Event(at=1.0, kind="warning", bundle="x", because="y" * 100_000))
    signer = world.signer("loud")
    for _ in range(5000):
        world.inbox.receive(topics.up("t", "loud", "event"), signer.sign_raw("event", event))
    world.hear("quiet", Event(at=1.0, kind="warning", bundle="x"), "event")
    while not world.inbox.is_empty:
        world.controller.turn()
    with world.store.reading() as session:
        kept = records.events_after(session, 0, 10_000)
    assert {event.device for event in kept} == {"loud", "quiet"}
    assert sum(len(event.because) for event in kept) <= 1_100_000, "it was 500 MB"
    (reason,) = world.inbox.quotas.dropped("loud")
    assert reason == "event over quota"
    assert world.inbox.quotas.dropped("quiet") == {}
    assert world.inbox.quotas.most_dropped() == {"loud": world.inbox.counters["over_quota"]}
    lines = [record.getMessage() for record in caplog.records if "quota" in record.getMessage()]
    assert len(lines) == 4, "at 1, 10, 100, 1000"


def test_a_message_that_no_agent_sends_is_dropped_before_it_is_read_and_counted(
    world: World,
) -> None:
    world.enroll("a")
    padded = encode(says("IDLE")).ljust(MAX_MESSAGE_BYTES - 1000)
    world.hear("a", padded + 1000 * b" ")
    assert world.inbox.counters["too_long"] == 1
    assert world.inbox.quotas.dropped("a") == {"reported too long": 1}
    with world.store.reading() as session:
        assert not inventory.list_devices(session)[0].online
    world.hear("a", padded)
    with world.store.reading() as session:
        assert inventory.list_devices(session)[0].online


def test_a_device_may_say_more_once_time_has_passed() -> None:
    quotas = Quotas()
    burst, per_s = QUOTAS["event"]
    assert sum(quotas.admits("a", "event", 100.0) for _ in range(1000)) == burst
    assert quotas.admits("a", "reported", 100.0), "one kind does not use up another"
    assert not quotas.admits("a", "event", 100.0 + 0.5 / per_s)
    assert quotas.admits("a", "event", 100.0 + 1.6 / per_s)
    assert sum(quotas.admits("a", "event", 1e9) for _ in range(1000)) == burst


def test_no_more_devices_are_remembered_than_there_is_room_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("edgepack.fleet.controller.quotas.MAX_DEVICES", 2)
    quotas = Quotas()
    for device in ("a", "b", "a", "c"):
        quotas.note_dropped(device, "malformed need", "")
    assert quotas.most_dropped() == {"a": 2, "c": 1}


def test_a_topic_that_no_device_writes_is_logged_once_and_counted(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    link = Link(
        BrokerAccess(url="mqtt://127.0.0.1:9"),
        client_id="c",
        subscriptions=("#",),
        trial="t",
        on_message=world.inbox.receive,
        on_connected=world.inbox.connected,
    )
    for topic in (b"ep/1/t/d/\xff\xfe/up/need", b"", b"ep/1/t/d/a b/up/need", "é\x1b[2J".encode()):
        message = mqtt.MQTTMessage(topic=topic)
        link._message(link._client, None, message)
    assert world.inbox.counters == {"unknown_topic": 4}
    assert len(caplog.records) == 1
    assert caplog.records[0].exc_info is None


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("event", {"at": 1e308}),
        ("event", {"at": -1}),
        ("event", {"kind": "x" * 500}),
        ("telemetry", {"window_start": 1e300}),
        ("telemetry", {"window_s": -3}),
        ("telemetry", {"failures": 10**15 * 10**15}),
        ("telemetry", {"provider": "x" * 100_000}),
        ("need", {"lost": -1}),
        ("need", {"received": 10**30}),
        ("reported", {"at": 1e308}),
        ("reported", {"trust": {"root": 10**400}}),
        ("reported", {"models": {"m": {"progress": 1e308}}}),
    ],
    ids=str,
)
def test_numbers_and_names_that_can_be_none_are_dropped_at_the_edge(
    world: World, kind: topics.UpKind, change: dict[str, Any]
) -> None:
    world.enroll("a")
    whole: dict[str, Message] = {
        "event": Event(at=1.0, kind="warning", bundle="x"),
        "telemetry": telemetry_window(),
        "need": Need(digest="x", files=()),
        "reported": says("IDLE"),
    }
    good = json.loads(encode(whole[kind]))
    world.hear("a", json.dumps(good).encode(), kind)
    world.hear("a", json.dumps(good | change).encode(), kind)
    assert world.inbox.counters == {kind: 1, "malformed": 1}
    assert world.inbox.quotas.dropped("a") == {f"malformed {kind}": 1}


def test_of_a_devices_events_the_newest_are_kept(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "MAX_EVENTS", 3)
    with world.store.transaction() as session:
        for device in ("a", "b", "a", "a", "a", "a"):
            event = Event(at=1.0, kind="warning", bundle="x")
            records.add_device_events(session, [(device, event)], 1.0)
        records.forget_old(session, 1.0)
        assert [event.device for event in records.events_after(session, 0, 10)] == [*"baaa"]

"""The daemon's handling of messages, good and bad, without a broker."""

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepack.agent.broker.inbox import (
    MAX_CHUNKS,
    MAX_OTHERS,
    Acknowledged,
    Arrived,
    Connected,
    Inbox,
    Item,
)
from edgepack.agent.broker.report import report_due_s
from edgepack.agent.config import AgentConfig, TelemetryConfig, TrustConfig
from edgepack.agent.daemon.agent import FAULT, Agent
from edgepack.agent.enrolment.renewal import CertificateKeeper
from edgepack.agent.telemetry.buffer import TelemetryBuffer
from edgepack.agent.update.dependencies import Clock
from edgepack.agent.update.device_trust import DeviceTrust
from edgepack.agent.update.models import Models
from edgepack.wire import topics
from edgepack.wire.batches import Session
from edgepack.wire.messages import Message, encode
from edgepack.wire.reports import Reported, Trusted
from edgepack.wire.telemetry import Event
from tests.simulators.repository import RepositoryWorld
from tests.simulators.signing import read_report
from tests.simulators.trusting_device import TrustingDevice, word
from tests.simulators.world import World
from tests.unit.agent.conftest import Releases

DESIRED = topics.desired("default", "cam-1")


@dataclass
class MemoryPublisher:
    """Publisher that stores messages."""

    is_connected: bool = True
    looked_after: int = 0
    trouble: str = ""
    sent: list[tuple[str, Message, bool]] = field(default_factory=list)
    files: frozenset[str] = frozenset()
    renewed: int = 0
    coded: frozenset[str] = frozenset()
    session: str = "s1"

    @property
    def has_session(self) -> bool:
        return bool(self.session)

    def look_after(self) -> None:
        self.looked_after += 1

    def renew_certificate(self) -> None:
        self.renewed += 1

    def accept_session(self, session: Session) -> bool:
        is_new = session.session != self.session
        self.session = session.session
        return is_new

    def publish(
        self,
        kind: topics.UpKind,
        *messages: Message,
        retain: bool = False,
        place: tuple[str, int] | None = None,
    ) -> int | None:
        if not self.is_connected:
            return None
        for message in messages:
            assert len(encode(message)) < 120 * 1024
            self.sent.append((kind, message, retain))
        return len(self.sent)

    def listen(self, files: frozenset[str]) -> None:
        self.files = files

    def hears_coded(self, sha256: str) -> bool:
        return sha256 in self.coded

    def reports(self) -> list[Reported]:
        said: list[Reported] = []
        for kind, message, _ in self.sent:
            if kind == "reported":
                said.append(read_report(encode(message), said[-1] if said else None))
        return said

    def events(self) -> list[Event]:
        return [message for _, message, _ in self.sent if isinstance(message, Event)]


class FullInbox(Inbox):
    """An inbox that has all items before a turn begins; a turn need not wait for another item."""

    def get(self, timeout_s: float) -> Item | None:
        return super().get(0)


@dataclass
class Daemon:
    """An agent in a simulated world."""

    world: World
    agent: Agent
    inbox: Inbox
    publisher: MemoryPublisher

    def turn(self, *items: Arrived | Connected | Acknowledged) -> None:
        for item in items:
            self.inbox.put(item)
        self.agent.turn()
        assert FAULT not in self.agent.dropped

    def settle(self) -> None:
        for _ in range(60):
            self.turn()
            self.world.link.deliver(self.world.models)
            self.world.now += 0.2


def make_daemon(
    world: World,
    publisher: MemoryPublisher,
    trust: DeviceTrust | None = None,
    keeper: CertificateKeeper | None = None,
) -> Daemon:
    config = AgentConfig(
        device="cam-1",
        state_dir=str(world.state_dir),
        trust=TrustConfig(keys=()),
        telemetry=TelemetryConfig(interval_s=30),
    )
    inbox = FullInbox()

    def take_models(notify: Callable[[], None]) -> Models:
        world.on_move = lambda _state: notify()
        return world.models

    agent = Agent(
        config,
        inbox,
        publisher,
        TelemetryBuffer(world.state_dir),
        take_models,
        boot="b",
        trust=trust,
        keeper=keeper,
        clock=Clock(wall=lambda: world.now, monotonic=lambda: world.now),
    )
    return Daemon(world=world, agent=agent, inbox=inbox, publisher=publisher)


def test_an_identity_that_another_client_uses_is_reported(world: World) -> None:
    publisher = MemoryPublisher(trouble="another client uses this identity")
    make_daemon(world, publisher).turn(Connected())
    assert publisher.reports()[-1].warnings == ("another client uses this identity",)


@pytest.fixture
def daemon(world: World) -> Daemon:
    return make_daemon(world, MemoryPublisher())


def test_an_offer_is_taken_reported_and_told_event_by_event(
    daemon: Daemon, releases: Releases
) -> None:
    daemon.turn(Connected())
    payload = encode(releases.two.desired(2))
    daemon.turn(Arrived(topic=DESIRED, payload=payload))
    daemon.settle()
    report = daemon.publisher.reports()[-1]
    assert report.sequence == 2
    last = report.models["tiny"]
    assert last.state == "COMMITTED"
    assert last.active is not None
    assert last.active.bundle == releases.two.ref
    assert last.previous == releases.one.ref
    reports = [(said, kept) for kind, said, kept in daemon.publisher.sent if kind == "reported"]
    assert all(isinstance(said, Reported) is kept for said, kept in reports), "whole ones alone"
    assert [e.to_state for e in daemon.publisher.events() if e.sequence == 2][-1] == "COMMITTED"


def test_events_wait_for_a_broker_that_is_away_and_go_when_it_took_them(
    daemon: Daemon, releases: Releases
) -> None:
    daemon.publisher.is_connected = False
    daemon.turn(Arrived(topic=DESIRED, payload=encode(releases.two.desired(2))))
    daemon.settle()
    assert daemon.publisher.sent == []
    waiting = len(daemon.world.journal.outbox)
    assert waiting > 8
    daemon.publisher.is_connected = True
    daemon.turn(Connected())
    assert len(daemon.publisher.events()) == waiting
    assert daemon.publisher.reports()[-1].models["tiny"].state == "COMMITTED"
    daemon.turn(*(Acknowledged(message_id=number) for number in range(1, waiting + 2)))
    assert daemon.world.journal.outbox == ()
    daemon.turn(Connected())
    assert len(daemon.publisher.events()) == waiting


def test_a_report_is_sent_again_after_a_while(daemon: Daemon) -> None:
    daemon.turn(Connected())
    before = len(daemon.publisher.reports())
    daemon.world.now += 61
    daemon.turn()
    assert len(daemon.publisher.reports()) == before + 1


def test_the_connection_is_looked_after_in_every_turn(daemon: Daemon) -> None:
    before = daemon.publisher.looked_after
    daemon.turn()
    daemon.turn()
    assert daemon.publisher.looked_after == before + 2


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner),
    max_leaves=8,
)
TOPICS = st.sampled_from(
    [
        DESIRED,
        topics.repair("default", "cam-1", "0" * 64),
        topics.broadcast("default", "f" * 64),
        topics.coded("default", "f" * 64),
        "ep/1/default/d/cam-1/dn/b/short",
        "ep/1/default/d/cam-1/dn/other",
        "ep/1/default/d/cam-2/dn/desired",
        "",
    ]
)


@settings(max_examples=300)
@given(topic=TOPICS, payload=st.binary(max_size=200) | JSON.map(lambda v: repr(v).encode()))
def test_no_bytes_on_any_topic_stop_the_daemon_or_change_the_update(
    daemon: Daemon, topic: str, payload: bytes
) -> None:
    before = sum(daemon.agent.dropped.values())
    daemon.turn(Arrived(topic=topic, payload=payload))
    journal = daemon.world.journal
    assert (journal.state, journal.acted_sequence) == ("COMMITTED", 1)
    assert sum(daemon.agent.dropped.values()) == before + (topic != DESIRED or payload != b"")


@settings(max_examples=200)
@given(data=st.data())
def test_an_offer_with_one_field_replaced_is_judged_and_never_crashes(
    data: st.DataObject, daemon: Daemon, releases: Releases
) -> None:
    offer = msgspec.to_builtins(releases.two.desired(2))
    order = offer["models"]["tiny"]
    nested = [order[key] for key in ("bundle", "manifest", "signature")]
    target = data.draw(st.sampled_from([offer, order, *nested]))
    target[data.draw(st.sampled_from(sorted(target)))] = data.draw(
        st.none() | st.integers(-(2**70), 2**70) | st.text(max_size=80) | st.lists(st.integers())
    )
    daemon.turn(Arrived(topic=DESIRED, payload=msgspec.json.encode(offer)))
    daemon.world.link.needs.clear()
    assert daemon.world.pointer is not None
    assert daemon.world.pointer.bundle == releases.one.ref


def test_what_is_dropped_is_counted_by_its_reason(
    daemon: Daemon, releases: Releases, caplog: pytest.LogCaptureFixture
) -> None:
    chunk = topics.broadcast("default", "0" * 64)
    for payload in (b"", b"\0\0\0\0", struct.pack(">I", 3) + bytes(121 * 1024)):
        daemon.turn(Arrived(topic=chunk, payload=payload))
    for _ in range(12):
        daemon.turn(Arrived(topic=DESIRED, payload=b'{"v": 1}'))
    daemon.turn(Arrived(topic="elsewhere", payload=b""))
    assert daemon.agent.dropped == {
        "chunk without content": 2,
        "chunk too long": 1,
        "malformed offer": 12,
        "unknown topic": 1,
    }
    said = [m for m in caplog.messages if "dropped=malformed offer" in m]
    assert len(said) == 2  # The first and the tenth.
    assert "missing required field" in said[0]
    daemon.turn(Connected())
    refused = [event for event in daemon.publisher.events() if event.kind == "refused"]
    assert "malformed Desired message" in refused[0].because


def test_a_flood_of_chunks_neither_grows_without_bound_nor_pushes_out_an_offer() -> None:
    inbox = Inbox()
    offer = Arrived(topic=DESIRED, payload=b"offer")
    for _ in range(MAX_CHUNKS + 10):
        inbox.put_chunk(Arrived(topic="chunk", payload=b""))
    inbox.put(offer)
    assert inbox.dropped_chunks == 10
    assert inbox.get(0) is offer
    for _ in range(MAX_CHUNKS):
        assert inbox.get(0) is not None
    assert inbox.get(0) is None
    for number in range(MAX_OTHERS + 3):
        inbox.put(Acknowledged(message_id=number))
    assert inbox.dropped_others == 3
    assert inbox.get(0) == Acknowledged(message_id=3)


def test_the_state_folder_of_a_daemon_needs_no_latency_folder(tmp_path: Path) -> None:
    assert TelemetryBuffer(tmp_path).collect().telemetry == ()


def test_news_is_said_once_more_soon_and_at_a_moment_of_the_devices_own() -> None:
    moments = {report_due_s(f"cam-{number}", 60.0, is_news=True) for number in range(50)}
    assert all(10.0 <= moment < 20.0 for moment in moments)
    assert len(moments) > 40
    assert report_due_s("cam-1", 600.0, is_news=False) == 600.0


def test_an_agent_that_trusts_a_root_obeys_what_is_signed_for_it_alone(
    world: World, releases: Releases, tmp_path: Path
) -> None:
    fleet = RepositoryWorld(tmp_path / "tuf")
    device = TrustingDevice(fleet, tmp_path / "device")
    fleet.publish(releases.two)
    daemon = make_daemon(world, MemoryPublisher(), device.trust)
    daemon.turn(Connected())
    assert daemon.publisher.reports()[-1].trust == Trusted(root=1)
    for name, content in fleet.repository.messages().items():
        daemon.turn(Arrived(topic=topics.metadata("default", name), payload=content))

    daemon.turn(Arrived(topic=DESIRED, payload=encode(releases.three.desired(9))))
    daemon.settle()
    assert daemon.agent.dropped["word not accepted"] == 1
    assert world.pointer is not None
    assert world.pointer.bundle == releases.one.ref

    daemon.turn(Arrived(topic=DESIRED, payload=word(fleet, "cam-1", releases.three.desired(2))))
    daemon.settle()
    assert world.journal.state == "REJECTED"
    assert world.journal.because == "tiny 1.3.0 is not released, or not any more"
    assert world.pointer.bundle == releases.one.ref

    daemon.turn(Arrived(topic=DESIRED, payload=word(fleet, "cam-1", releases.two.desired(3))))
    daemon.settle()
    report = daemon.publisher.reports()[-1]
    assert report.models["tiny"].state == "COMMITTED"
    assert report.sequence == 3
    assert report.trust is not None
    assert report.trust.is_whole
    assert report.trust.director == 3


def test_a_fault_that_a_message_causes_ends_neither_the_agent_nor_its_update(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    daemon.turn(Connected())
    before = len(daemon.publisher.reports())

    def break_down(*_: object) -> None:
        raise RuntimeError("a state that nobody foresaw")

    with monkeypatch.context() as broken:
        broken.setattr(daemon.world.models, "note_connected", break_down)
        daemon.inbox.put(Connected())
        daemon.agent.turn()
    assert daemon.agent.dropped.pop(FAULT) == 1
    assert "a state that nobody foresaw" in caplog.text
    daemon.turn(Connected())
    assert len(daemon.publisher.reports()) > before + 1

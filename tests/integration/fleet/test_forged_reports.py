"""A holder of the broker can publish in a device's name, and repeat the device's messages.

The broker is a real mosquitto without access rules; `Forger` is the party that controls the broker.
"""

import contextlib
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import paho.mqtt.client as mqtt
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from edgepack.agent.broker.signing import read_signer
from edgepack.agent.config import read_config
from edgepack.agent.enrolment.identity import make_key
from edgepack.errors import FleetError
from edgepack.fleet.broker.access import BrokerAccess, open_client
from edgepack.fleet.controller.quotas import QUOTAS
from edgepack.wire import topics
from edgepack.wire.histogram import LatencyRecorder
from edgepack.wire.messages import Message, decode, encode
from edgepack.wire.orders import BundleRef, Desired
from edgepack.wire.reports import Active, Choice, Reported, ReportedModel
from edgepack.wire.telemetry import Event, Telemetry
from tests.integration.fleet.conftest import (
    CAMERAS,
    FleetProcess,
    MakeBundle,
    Mosquitto,
    Serve,
    edgepack,
)
from tests.integration.fleet.dashboard import Visitor
from tests.integration.fleet.postgresql import PostgreSQL
from tests.simulators.signing import RawSigner, Speaker, sign_with
from tests.simulators.waiting import wait_until
from tests.simulators.world import make_facts


class Forger:
    """Reads all that goes through the broker, and publishes in anybody's name."""

    def __init__(self, broker: Mosquitto) -> None:
        self.heard: list[tuple[str, bytes]] = []
        self._client = open_client(BrokerAccess(url=broker.url), "forger")
        self._client.on_connect = lambda client, *_: client.subscribe("#", 1)
        self._client.on_message = self._take
        self._client.connect_somewhere()
        self._client.loop_start()

    def _take(self, _client: mqtt.Client, _data: object, message: mqtt.MQTTMessage) -> None:
        self.heard.append((message.topic, bytes(message.payload)))

    def publish(self, device: str, kind: topics.UpKind, payload: bytes) -> None:
        topic = topics.up("default", device, kind)
        self._client.publish(topic, payload, qos=1).wait_for_publish(10)

    def desired(self, device: str) -> Desired | None:
        """Return the fleet's order for a device, as read by a holder of the broker."""
        topic = topics.desired("default", device)
        said = [payload for found, payload in tuple(self.heard) if found == topic and payload]
        return decode(said[-1], Desired) if said else None

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


@pytest.fixture
def forger(mosquitto: Mosquitto) -> Iterator[Forger]:
    forger = Forger(mosquitto)
    yield forger
    forger.close()


@pytest.fixture
def fleet(serve: Serve, mosquitto: Mosquitto) -> FleetProcess:
    return serve("--broker", mosquitto.url)


def report(
    state: str, bundle: BundleRef, sequence: int, *, boot: str = "b1", count: int = 0
) -> bytes:
    """Return a report in an agent's form, with the counter of older reports."""
    choice = Choice(wanted="", chosen="cpu", provider="x", because="", is_fallback=False)
    model = ReportedModel(
        state=state,
        sequence=sequence,
        acted_sequence=sequence,
        target=bundle,
        active=Active(bundle=bundle, choice=choice, since=1.0),
    )
    said = Reported(
        online=True,
        at=1.0,
        boot=boot,
        facts=make_facts(),
        sequence=sequence,
        models={bundle.name: model},
    )
    return encode(said)[:-1] + b',"count":%d}' % count


def offered(forger: Forger, device: str) -> tuple[BundleRef, int]:
    """Return the release offered to a device, and the sequence of the order."""
    wait_until(lambda: bool((said := forger.desired(device)) and said.models), "it is offered")
    desired = forger.desired(device)
    assert desired is not None
    (order,) = desired.models.values()
    return order.bundle, order.sequence  # type: ignore[union-attr]


def first_offered(forger: Forger) -> str:
    """Return the device of the first wave."""

    def found() -> list[str]:
        wanted = {name: forger.desired(name) for name in ("cam-1", "cam-2")}
        return [name for name, desired in wanted.items() if desired and desired.models]

    wait_until(lambda: bool(found()), "a device is offered")
    (name,) = found()
    return name


def enroll(fleet: FleetProcess, folder: Path) -> None:
    fleet.client.enroll(folder.name, group="cameras", folder=folder)


def forgeries(folder: Path, other: Path, content: bytes) -> Iterator[bytes]:
    """Yield reports in a device's name without its key: in every form."""
    yield content
    for sign in (sign_with(make_key()), read_signer(read_config(other / "agent.toml").signing_key)):
        signer = RawSigner(tenant="default", device=folder.name, boot="b1", sign=sign)
        yield signer.sign_raw("reported", content)
        yield signer.sign_raw("reported", content, sequence=10**15)
    own = RawSigner(tenant="default", device=other.name, boot="b1", sign=sign)
    yield own.sign_raw("reported", content)


def drops(fleet: FleetProcess, device: str) -> dict[str, int]:
    return fleet.client.device(device).dropped


def test_no_rollout_finishes_for_a_device_that_never_connected(
    fleet: FleetProcess, forger: Forger, make_bundle: MakeBundle, tmp_path: Path
) -> None:
    for name in ("cam-1", "cam-2"):
        enroll(fleet, tmp_path / name)
    rollout = fleet.roll_out(make_bundle(), CAMERAS, waves="1,100%", deadline_s=600.0)
    device = first_offered(forger)
    bundle, sequence = offered(forger, device)
    folder, other = (tmp_path / name for name in sorted(("cam-1", "cam-2"), key=device.__ne__))
    sent = list(forgeries(folder, other, report("COMMITTED", bundle, sequence)))
    for payload in sent:
        forger.publish(device, "reported", payload)
    fleet.wait_until(lambda: sum(drops(fleet, device).values()) == len(sent), "all are dropped")
    view = fleet.rollout(rollout)
    assert (view.state, view.counts) == ("RUNNING", {"OFFERED": 1, "WAITING": 1})
    assert fleet.info().online == 0
    shown = fleet.client.device(device)
    assert (shown.last_seen, [it.state for it in shown.models]) == (None, [""])
    # Everybody can see that somebody forges.
    assert drops(fleet, device) == {
        "reported unsigned": 1,
        "reported not signed by the device": 4,
        "reported for another topic": 1,
    }
    assert fleet.info().dropped == {device: len(sent)}
    (warning,) = (it for it in fleet.info().warnings if "sign" in it)
    assert device in warning
    assert "not signed by the device" in edgepack(fleet, "fleet", "devices", "show", device).stdout
    token = (fleet.data / "token").read_text()
    text = Visitor(fleet.url).get("/metrics", Authorization=f"Bearer {token}").text
    families = {it.name: it for it in text_string_to_metric_families(text)}  # type: ignore[no-untyped-call]
    outcomes = {
        it.labels["edgepack_outcome"]: it.value for it in families["edgepack_messages"].samples
    }
    assert outcomes["not_signed_by_the_device"] == 4


def test_a_forged_report_of_the_canary_starts_no_second_wave(
    fleet: FleetProcess, forger: Forger, make_bundle: MakeBundle, tmp_path: Path
) -> None:
    for name in ("cam-1", "cam-2"):
        enroll(fleet, tmp_path / name)
    with Speaker(tmp_path / "cam-1") as canary:
        rollout = fleet.roll_out(make_bundle(), CAMERAS, waves="1,100%", deadline_s=600.0)
        canary.greet()
        device = first_offered(forger)
        bundle, sequence = offered(forger, device)
        forger.publish(device, "reported", report("COMMITTED", bundle, sequence))
        fleet.wait_until(lambda: sum(drops(fleet, device).values()) == 1, "it is dropped")
        view = fleet.rollout(rollout)
        assert view.wave == 1
        assert view.counts.get("COMMITTED", 0) == 0


def test_a_count_beyond_all_bounds_silences_no_device(
    fleet: FleetProcess, forger: Forger, make_bundle: MakeBundle, tmp_path: Path
) -> None:
    enroll(fleet, tmp_path / "cam-1")
    with Speaker(tmp_path / "cam-1") as device:
        device.greet()
        rollout = fleet.roll_out(make_bundle(), CAMERAS, waves="100%", deadline_s=600.0)
        bundle, sequence = offered(forger, "cam-1")
        forged = report("DOWNLOADING", bundle, sequence, count=10**15)
        forger.publish("cam-1", "reported", forged)
        # Even the device's own key cannot use numbers up.
        device.publish("reported", device.signer.sign_raw("reported", forged, sequence=2**52))
        fleet.wait_until(lambda: sum(drops(fleet, "cam-1").values()) == 2, "both are dropped")
        assert set(drops(fleet, "cam-1")) == {"reported unsigned", "reported sequence out of range"}
        device.signer.numbers["reported"] = 0
        device.say("reported", report("COMMITTED", bundle, sequence))
        assert fleet.wait_for(rollout, "FINISHED").counts == {"COMMITTED": 1}


def test_nothing_that_was_recorded_is_accepted_again(
    fleet: FleetProcess, forger: Forger, make_bundle: MakeBundle, tmp_path: Path
) -> None:
    enroll(fleet, tmp_path / "cam-1")
    with Speaker(tmp_path / "cam-1", boot="b1") as device:
        device.greet()
        first = fleet.roll_out(make_bundle("1.0.0", 1), CAMERAS, waves="100%", deadline_s=600.0)
        bundle, sequence = offered(forger, "cam-1")
        device.say("reported", report("SOAKING", bundle, sequence))
        old = device.say("reported", report("COMMITTED", bundle, sequence))
        event = Event(at=1.0, kind="warning", bundle="x", because="it was hot")
        old_event = device.say("event", event)
        old_telemetry = device.say("telemetry", window(1.0))
        fleet.wait_for(first, "FINISHED")
        second = fleet.roll_out(make_bundle("2.0.0", 2), CAMERAS, waves="100%", deadline_s=600.0)
        wait_until(lambda: offered(forger, "cam-1")[0] != bundle, "the next one is offered")
        newer, next_sequence = offered(forger, "cam-1")
        device.say("reported", report("ROLLED_BACK", newer, next_sequence))
        fleet.wait_until(lambda: fleet.rollout(second).counts == {"FAILED": 1}, "it failed")
        recorded = {"reported": old, "event": old_event, "telemetry": old_telemetry}
        for kind, payload in recorded.items():
            forger.publish("cam-1", kind, payload)  # type: ignore[arg-type]
        fleet.wait_until(lambda: "reported replayed" in drops(fleet, "cam-1"), "it is dropped")
        fleet.wait_until(lambda: fleet.info().counters.get("stale") == 2, "so are the others")
    shown = fleet.client.device("cam-1")
    assert [(it.name, it.state) for it in shown.models] == [("digits", "ROLLED_BACK")]
    assert fleet.rollout(second).counts == {"FAILED": 1}
    # The device restarts. Nothing that its last process published counts any more.
    with Speaker(tmp_path / "cam-1", boot="b2") as device:
        device.greet()
        device.say("reported", report("ROLLED_BACK", newer, next_sequence, boot="b2"))
        fleet.wait_until(lambda: fleet.info().counters.get("reported") == 4, "it reported")
        for kind, payload in recorded.items():
            forger.publish("cam-1", kind, payload)  # type: ignore[arg-type]
        fleet.wait_until(
            lambda: {f"{kind} of another session" for kind in recorded} <= {*drops(fleet, "cam-1")},
            "all of it is dropped",
        )
        device.say("reported", report("COMMITTED", newer, next_sequence, boot="b2"))
        fleet.wait_until(
            lambda: [it.state for it in fleet.client.device("cam-1").models] == ["COMMITTED"],
            "the true device is heard",
        )


def test_reports_in_another_order_leave_the_newest_result_and_silence_nobody(
    fleet: FleetProcess, forger: Forger, make_bundle: MakeBundle, tmp_path: Path
) -> None:
    enroll(fleet, tmp_path / "cam-1")
    with Speaker(tmp_path / "cam-1") as device:
        device.greet()
        name = fleet.roll_out(make_bundle(), CAMERAS, waves="100%", deadline_s=600.0)
        bundle, sequence = offered(forger, "cam-1")
        sign, word = device.signer.sign_raw, device.signer.word
        earlier = sign("reported", report("SOAKING", bundle, sequence))
        forger.publish(
            "cam-1", "reported", sign("reported", report("ROLLED_BACK", bundle, sequence))
        )
        forger.publish("cam-1", "reported", earlier)
        wait_until(lambda: device.signer.word != word, "the device is given a session")
        assert drops(fleet, "cam-1") == {"reported replayed": 1}
        assert fleet.rollout(name).counts == {"FAILED": 1}
        device.say("reported", report("COMMITTED", bundle, sequence))
        fleet.wait_until(
            lambda: [it.state for it in fleet.client.device("cam-1").models] == ["COMMITTED"],
            "the device is heard",
        )


def test_a_report_from_before_a_database_was_restored_is_not_accepted_again(
    fleet: FleetProcess, forger: Forger, make_bundle: MakeBundle, tmp_path: Path
) -> None:
    database, copy = fleet.data / "fleet.db", tmp_path / "copy.db"
    enroll(fleet, tmp_path / "cam-1")
    with Speaker(tmp_path / "cam-1", boot="b1") as device:
        device.greet()
        name = fleet.roll_out(make_bundle("1.0.0", 1), CAMERAS, waves="100%", deadline_s=600.0)
        bundle, sequence = offered(forger, "cam-1")
        device.say("reported", report("SOAKING", bundle, sequence))
        fleet.wait_until(lambda: fleet.rollout(name).counts == {"WORKING": 1}, "it soaks")
        with closing(sqlite3.connect(database)) as source, closing(sqlite3.connect(copy)) as kept:
            source.backup(kept)
        recorded = device.say("reported", report("COMMITTED", bundle, sequence))
        fleet.wait_for(name, "FINISHED")
        assert fleet.stop() == 0
    for left in fleet.data.glob("fleet.db*"):
        left.unlink()
    shutil.copy(copy, database)
    fleet.start()
    assert fleet.rollout(name).counts == {"WORKING": 1}
    forger.publish("cam-1", "reported", recorded)
    fleet.wait_until(lambda: fleet.info().counters.get("greeted", 0) >= 1, "it was heard")
    assert fleet.rollout(name).counts == {"WORKING": 1}
    # The device is given a session of the new process, and is heard in it.
    device = Speaker(tmp_path / "cam-1", boot="b1")
    with device:
        device.greet()
        device.say("reported", report("ROLLED_BACK", bundle, sequence))
        fleet.wait_until(lambda: fleet.rollout(name).counts == {"FAILED": 1}, "it is heard")


def warns_of_older_copy(fleet: FleetProcess) -> bool:
    """Return whether a fleet warns; it answers nothing while a restore cuts its connections."""
    with contextlib.suppress(FleetError):
        return any("older copy" in warning for warning in fleet.info().warnings)
    return False


def test_a_report_from_before_a_restore_under_a_running_controller_is_not_accepted_again(
    serve: Serve,
    mosquitto: Mosquitto,
    postgresql: PostgreSQL,
    forger: Forger,
    make_bundle: MakeBundle,
    tmp_path: Path,
) -> None:
    database = postgresql.empty_database()
    fleet = serve("--broker", mosquitto.url, "--database", database, "--lease", "1")
    copy = tmp_path / "copy.sql"
    enroll(fleet, tmp_path / "cam-1")
    with Speaker(tmp_path / "cam-1", boot="b1") as device:
        device.greet()
        name = fleet.roll_out(make_bundle("1.0.0", 1), CAMERAS, waves="100%", deadline_s=600.0)
        bundle, sequence = offered(forger, "cam-1")
        device.say("reported", report("SOAKING", bundle, sequence))
        fleet.wait_until(lambda: fleet.rollout(name).counts == {"WORKING": 1}, "it soaks")
        postgresql.dump(copy)
        recorded = device.say("reported", report("COMMITTED", bundle, sequence))
        fleet.wait_for(name, "FINISHED")
        postgresql.restore(copy)
        fleet.wait_until(lambda: warns_of_older_copy(fleet), "it is seen")
        # The copy names a leader, too: the note is the first that the new term stores.
        fleet.wait_until(lambda: bool(fleet.client.audit(action="database.restored")), "it leads")
        (entry,) = fleet.client.audit(action="database.restored")
        assert entry.numbers["renewals"] < entry.numbers["renewals before"]  # type: ignore[operator]
        word = device.signer.word
        forger.publish("cam-1", "reported", recorded)
        # It is answered with a session of the new term, and has no other effect.
        wait_until(lambda: device.signer.word != word, "the device is given a session")
        assert fleet.rollout(name).counts == {"WORKING": 1}
        device.say("reported", report("ROLLED_BACK", bundle, sequence))
        fleet.wait_until(lambda: fleet.rollout(name).counts == {"FAILED": 1}, "it is heard")


def test_a_flood_of_forged_messages_does_not_use_up_the_quota_of_the_device(
    fleet: FleetProcess, forger: Forger, tmp_path: Path
) -> None:
    enroll(fleet, tmp_path / "cam-1")
    event = encode(Event(at=1.0, kind="warning", bundle="x", because="it was hot"))
    signer = RawSigner(tenant="default", device="cam-1", boot="b1", sign=sign_with(make_key()))
    forged = signer.sign_raw("event", event)
    will = b'{"v":1,"online":false,"at":1,"boot":"b2"}'
    with Speaker(tmp_path / "cam-1") as device:
        device.greet()
        device.say("reported", b'{"v":1,"online":true,"at":1,"boot":"b1"}')
        burst = round(QUOTAS["event"].burst)
        for _ in range(burst + 50):
            forger.publish("cam-1", "event", forged)
        for _ in range(700):
            forger.publish("cam-1", "reported", will)
        fleet.wait_until(
            lambda: (
                drops(fleet, "cam-1").get("event not signed by the device", 0) >= burst
                and drops(fleet, "cam-1").get("will over quota", 0) > 600
            ),
            "the flood is seen",
        )
        flooded = drops(fleet, "cam-1")
        for _ in range(5):
            device.say("event", event)
            device.say("reported", b'{"v":1,"online":true,"at":1,"boot":"b1"}')
        fleet.wait_until(lambda: fleet.info().counters.get("event") == 5, "true events count")
        fleet.wait_until(lambda: fleet.info().online == 1, "the true device is heard")
        assert "reported over quota" not in drops(fleet, "cam-1")
        # Forged events count here if they came before the first was recognized.
        name = "event over quota"
        assert drops(fleet, "cam-1").get(name, 0) == flooded.get(name, 0)


def test_a_forged_last_will_marks_a_device_offline_and_changes_no_result(
    fleet: FleetProcess, forger: Forger, make_bundle: MakeBundle, tmp_path: Path
) -> None:
    enroll(fleet, tmp_path / "cam-1")
    with Speaker(tmp_path / "cam-1") as device:
        device.greet()
        rollout = fleet.roll_out(make_bundle(), CAMERAS, waves="100%", deadline_s=600.0)
        bundle, sequence = offered(forger, "cam-1")
        device.say("reported", report("SOAKING", bundle, sequence))
        fleet.wait_until(lambda: fleet.info().online == 1, "it is online")
        will = report("ROLLED_BACK", bundle, sequence).replace(b'"online":true', b'"online":false')
        forger.publish("cam-1", "reported", will)
        fleet.wait_until(lambda: fleet.info().online == 0, "it is offline")
        assert fleet.rollout(rollout).counts == {"WORKING": 1}
        device.say("reported", report("COMMITTED", bundle, sequence))
        assert fleet.wait_for(rollout, "FINISHED").counts == {"COMMITTED": 1}


def test_a_revoked_certificates_key_signs_no_report(
    fleet: FleetProcess, forger: Forger, tmp_path: Path
) -> None:
    enroll(fleet, tmp_path / "cam-1")
    with Speaker(tmp_path / "cam-1") as device:
        device.greet()
        fleet.client.revoke(tmp_path / "cam-1" / "device.crt")
        device.say("reported", b'{"v":1,"online":true,"at":1,"boot":"b1"}')
        fleet.wait_until(
            lambda: "reported not signed by the device" in drops(fleet, "cam-1"), "it is dropped"
        )
    assert fleet.info().online == 0
    assert forger.heard


def test_a_device_counts_no_more_inferences_than_can_have_run(
    fleet: FleetProcess, tmp_path: Path
) -> None:
    enroll(fleet, tmp_path / "cam-1")
    with Speaker(tmp_path / "cam-1") as device:
        device.greet()
        device.say("reported", b'{"v":1,"online":true,"at":1,"boot":"b1"}')
        device.say("telemetry", window(1.0, count=10**11), window(2.0), window(3.0))
        fleet.wait_until(
            lambda: drops(fleet, "cam-1") == {"telemetry count out of range": 1}, "dropped"
        )
        device.say("telemetry", window(4.0))
        fleet.wait_until(lambda: fleet.info().counters.get("telemetry") == 1, "the next one counts")
    parts = fleet.client.latency().parts
    assert sum(part.inferences for part in parts) == 3


def window(start: float, *, count: int = 1) -> Message:
    recorder = LatencyRecorder()
    recorder.record(2.0)
    told = recorder.snapshot()
    bucket = next(iter(told.counts))
    latency = type(told)(
        growth=told.growth,
        counts={bucket: count},
        count=count,
        sum_ms=2.0 * count,
        min_ms=2.0,
        max_ms=2.0,
    )
    return Telemetry(
        digest="ab" * 32,
        variant="cpu",
        provider="x",
        window_start=start,
        window_s=30.0,
        latency=latency,
    )

"""A device with too many, too long or invalid messages: limited, counted, and shown to users."""

from pathlib import Path

from prometheus_client.openmetrics.parser import text_string_to_metric_families

from edgepack.fleet.controller.quotas import QUOTAS
from edgepack.wire import topics
from edgepack.wire.messages import MAX_MESSAGE_BYTES, encode
from edgepack.wire.telemetry import Event
from tests.integration.fleet.conftest import FleetProcess, edgepack
from tests.integration.fleet.dashboard import Visitor
from tests.integration.fleet.test_broker_settings import REPORT, device

FLOOD = 700


def outcomes(fleet: FleetProcess) -> dict[str, float]:
    token = (fleet.data / "token").read_text()
    answer = Visitor(fleet.url).get("/metrics", Authorization=f"Bearer {token}")
    assert "loud" not in answer.text, "names of devices would grow with the fleet"
    families = text_string_to_metric_families(answer.text)  # type: ignore[no-untyped-call]
    for family in families:
        if family.name == "edgepack_messages":
            return {sample.labels["edgepack_outcome"]: sample.value for sample in family.samples}
    return {}


def test_what_is_dropped_of_a_device_is_shown_and_others_are_heard(
    tls_fleet: FleetProcess, tmp_path: Path
) -> None:
    with device(tls_fleet, tmp_path, "loud") as loud, device(tls_fleet, tmp_path, "quiet") as quiet:
        loud.greet().say("reported", REPORT)
        event = encode(Event(at=1.0, kind="warning", bundle="x", because="y" * 500))
        to_events = topics.up("default", "loud", "event")
        for _ in range(FLOOD):
            loud.client.publish(to_events, loud.signer.sign_raw("event", event), qos=1)
        for nonsense in (b"", b"\x1b[2J" * 100, b"[" * 1000, b'{"v":1,"online":1e999}'):
            loud.publish("telemetry", nonsense)
        too_long = b'{"v":1}'.ljust(MAX_MESSAGE_BYTES + 1)
        loud.publish("need", too_long)
        quiet.greet().say("reported", REPORT)
        tls_fleet.wait_until(lambda: tls_fleet.info().online == 2, "the quiet one is heard")
        tls_fleet.wait_until(
            lambda: len(tls_fleet.client.device("loud").dropped) == 4, "all four are counted"
        )
    dropped = tls_fleet.client.device("loud").dropped
    over = FLOOD - QUOTAS["event"].burst
    assert over - 20 <= dropped["event over quota"] <= over
    assert dropped["malformed telemetry"] == 3
    assert dropped["telemetry unsigned"] == 1
    assert dropped["need too long"] == 1
    assert tls_fleet.client.device("quiet").dropped == {}
    shown = edgepack(tls_fleet, "fleet", "devices", "show", "loud").stdout
    assert "malformed telemetry" in shown
    assert "\x1b" not in shown
    found = outcomes(tls_fleet)
    assert found["over_quota"] == dropped["event over quota"]
    assert (found["malformed"], found["too_long"], found["unsigned"]) == (3, 1, 1)
    assert tls_fleet.info().dropped == {"loud": sum(dropped.values())}

"""A real agent and a WebSocket broker that closes during a send, or pings and never reads."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from edgepack.fleet.broker.access import BrokerAccess
from edgepack.fleet.broker.link import Link
from tests.integration.conftest import Keys
from tests.simulators.broker import Broker
from tests.simulators.bundles import make_bundle
from tests.simulators.controller import Controller
from tests.simulators.device import DEVICE, Device, running
from tests.simulators.hostile_websocket import MOST_PINGS_BYTES, HostileWebSocket, Way
from tests.simulators.waiting import wait_until

ATTACKS: tuple[tuple[tuple[Way, ...], str], ...] = (
    (("violate", "ping"), "the server violates the WebSocket protocol: invalid opcode"),
    (("close with data", "ping"), "the server closed the WebSocket: 1000"),
    (("hang up", "ping"), "the broker ended the connection"),
)
"""Ways of a hostile broker, and the reason that the agent gives for the first. Three connections
that end soon would delay the next one."""


def wait_while_it_runs(is_so: Callable[[], bool], device: Device) -> None:
    wait_until(lambda: is_so() or not device.is_running, device.said)
    assert device.is_running, device.said()


@pytest.mark.parametrize(("attacks", "reason"), ATTACKS)
def test_a_websocket_broker_that_closes_or_pings_stops_neither_the_agent_nor_its_update(
    attacks: tuple[Way, ...],
    reason: str,
    tmp_path: Path,
    mosquitto_broker: Broker,
    release_keys: Keys,
) -> None:
    relay = HostileWebSocket(mosquitto_broker.port, attacks)
    device = Device(tmp_path / "device", relay.url, release_keys[1])
    # One restart of the agent in mid-update would end the update.
    settings = device.config.read_text().replace("max_restarts = 1000", "max_restarts = 0")
    device.config.write_text(settings)
    bundle = make_bundle(tmp_path / "one", release_keys[0])
    controller = Controller(mosquitto_broker.port)
    controller.hold(bundle)
    with running(device):
        controller.offer(DEVICE, bundle.desired(1))
        wait_while_it_runs(lambda: relay.connections > len(attacks), device)
        wait_while_it_runs(lambda: device.pointer() is not None, device)
        journal = device.journal()
        assert journal is not None
        assert journal.restarts == 0
        assert device.stop() == 0
    assert "Traceback" not in device.said()
    assert reason in device.said()
    assert "Unspecified error" not in device.said()
    (sent,) = relay.ended_pings
    assert sent < MOST_PINGS_BYTES, "the agent kept an answer to every ping"
    controller.close()
    relay.close()


def test_a_controller_names_the_end_of_a_websocket_without_a_close_frame(
    mosquitto_broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    relay = HostileWebSocket(mosquitto_broker.port, ("hang up",))
    connected = threading.Semaphore(0)
    link = Link(
        BrokerAccess(url=relay.url),
        client_id="controller",
        subscriptions=(),
        trial="trial",
        on_message=lambda *_: None,
        on_connected=connected.release,
    )
    link.open()
    for _ in range(2):
        assert connected.acquire(timeout=400), "it connects again"
    link.close()
    relay.close()
    said = [record.getMessage() for record in caplog.records]
    assert f"broker={relay.url} lost because=the broker ended the connection" in said

"""Bytes that a device sends in a month: a real agent, mosquitto with TLS, and the kernel's counts.

The agent's clock is simulated; heartbeats, windows and pings are real packets.
"""

import random
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edgepack.agent.broker.connection import Connection
from edgepack.agent.broker.inbox import Inbox, Item
from edgepack.agent.broker.link import BrokerLink
from edgepack.agent.broker.signing import make_signer
from edgepack.agent.cli.assembly import assemble_models
from edgepack.agent.config import AgentConfig, BrokerConfig, TrustConfig
from edgepack.agent.daemon.agent import Agent
from edgepack.agent.telemetry.buffer import TelemetryBuffer
from edgepack.agent.telemetry.record import Record
from edgepack.agent.update.dependencies import Clock
from tests.integration.conftest import Keys
from tests.simulators import broker as mosquitto
from tests.simulators.broker import Broker
from tests.simulators.certificates import issue, make_authority
from tests.simulators.controller import Controller
from tests.simulators.device import DEVICE
from tests.simulators.manifests import CPU
from tests.simulators.ports import free_port

MONTH_S = 30 * 24 * 3600
HEADERS = 52
"""Bytes of a packet's IPv4 and TCP headers, with timestamps."""
_SENT, _PACKETS = 120, 136
"""Offsets in the kernel's `tcp_info`: acknowledged bytes (8 bytes), sent packets (4 bytes)."""


class QuickInbox(Inbox):
    """Inbox of an agent with a simulated clock, which need not wait."""

    def get(self, timeout_s: float) -> Item | None:
        return super().get(0.001)


class Measured:
    """An agent in this process, connected to mosquitto."""

    def __init__(self, folder: Path, url: str, key: Path) -> None:
        self.now, self.until = 1000.0, time.monotonic() + 60
        files = {name: str(folder / name) for name in ("ca.pem", "device.pem", "device.key")}
        settings = BrokerConfig(
            url=url,
            ca_file=files["ca.pem"],
            cert_file=files["device.pem"],
            key_file=files["device.key"],
        )
        config = AgentConfig(
            device=DEVICE,
            state_dir=str(folder / "state"),
            broker=settings,
            trust=TrustConfig(keys=(str(key),)),
        )
        self.config, self.broker, self.state_dir = config, settings, folder / "state"
        self.state_dir.mkdir()
        inbox, telemetry = QuickInbox(), TelemetryBuffer(self.state_dir, settings=config.telemetry)
        self.journal = telemetry.journal
        self.connection = Connection(
            config,
            settings,
            inbox,
            boot="b",
            signer=make_signer(config, "b"),
            rng=random.Random(1),
        )
        self.agent = Agent(
            config,
            inbox,
            self.connection,
            telemetry,
            lambda notify: assemble_models(config, BrokerLink(self.connection), telemetry, notify),
            boot="b",
            clock=Clock(monotonic=lambda: self.now),
        )
        self.agent.start()
        self.connection.start()

    def turn(self) -> None:
        self.agent.turn()
        assert time.monotonic() < self.until, "the month takes too long"

    def turn_until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            self.turn()

    def sent(self) -> tuple[int, int]:
        """Return the bytes and packets that this device sent, with TLS, without TCP and IP."""
        opened: Any = self.connection._client.socket()
        found = opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        (content,) = struct.unpack_from("=Q", found, _SENT)
        (packets,) = struct.unpack_from("=I", found, _PACKETS)
        return content, packets

    def measure(self, times: int, act: Callable[[], Callable[[], bool]]) -> float:
        """Return the sent bytes of an exchange; each ends with an acknowledgement of TCP."""
        before = self.sent()
        for _ in range(times):
            packets = self.sent()[1]
            is_answered = act()
            while not is_answered() or self.sent()[1] < packets + 2:
                self.turn()
        content, packets = (now - then for now, then in zip(self.sent(), before, strict=True))
        return (content + HEADERS * packets) / times


@pytest.fixture
def measured(tmp_path: Path, release_keys: Keys) -> Iterator[tuple[Measured, Controller]]:
    """Connect an agent by TLS, and a controller, to a mosquitto."""
    if not mosquitto.is_installed():
        pytest.skip("mosquitto is not installed")
    authority = make_authority(tmp_path, "ca")
    issue(tmp_path, "server", authority, "127.0.0.1")
    issue(tmp_path, "device", authority, DEVICE)
    port = free_port()
    settings = (
        "allow_anonymous true",
        f"listener {port} 127.0.0.1",
        f"cafile {tmp_path}/ca.pem",
        f"certfile {tmp_path}/server.pem",
        f"keyfile {tmp_path}/server.key",
    )
    with Broker(tmp_path, settings=settings) as broker:
        controller = Controller(broker.port)
        device = Measured(tmp_path, f"mqtts://127.0.0.1:{port}", release_keys[1])
        yield device, controller
        device.connection.stop()
        controller.close()


def test_an_idle_device_sends_at_most_10_mb_a_month(measured: tuple[Measured, Controller]) -> None:
    device, controller = measured
    device.turn_until(lambda: len(controller.reports) >= 2)
    beat_s, window_s = device.config.telemetry.heartbeat_s, device.config.telemetry.interval_s
    rng = random.Random(1)
    record = Record(device.state_dir, model="m", digest="1" * 64, variant="cpu", provider=CPU)

    def ping() -> Callable[[], bool]:
        device.connection._client._send_pingreq()
        return lambda: True

    def beat() -> Callable[[], bool]:
        heard = len(controller.reports)
        device.now += beat_s
        return lambda: len(controller.reports) > heard

    def window() -> Callable[[], bool]:
        for _ in range(int(10 * window_s)):
            record.latency.record(rng.lognormvariate(1.0, 0.5))
        device.now += window_s
        heard = device.journal.stored.acknowledged
        return lambda: device.journal.stored.acknowledged > heard

    device.measure(3, beat)  # News is reported twice.
    pings, beats, windows = (device.measure(8, act) for act in (ping, beat, window))
    record.latency.close()
    idle = MONTH_S / device.broker.keepalive_s * pings + MONTH_S / beat_s * beats
    serving = MONTH_S / window_s * (windows - beats * window_s / beat_s)
    assert 5e6 < idle <= 10e6
    assert 5e6 < serving <= 15e6, "at 10 inferences a second, in addition"

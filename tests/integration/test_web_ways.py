"""Networks without MQTT's port: brokers behind WebSockets and HTTP proxies, all real."""

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from edgepack.errors import TransferError
from edgepack.fleet.broker.access import BrokerAccess
from edgepack.fleet.broker.link import Link
from edgepack.wire import topics
from tests.integration.conftest import Keys
from tests.simulators import web_ways
from tests.simulators.broker import Broker
from tests.simulators.bundles import make_bundle
from tests.simulators.certificates import issue, make_authority
from tests.simulators.controller import TENANT, Controller
from tests.simulators.device import DEVICE, Device, running, wait_for_line
from tests.simulators.ports import free_port
from tests.simulators.web_ways import Ejabberd, tinyproxy


@pytest.fixture(autouse=True)
def _ways() -> None:
    web_ways.skip_if_missing()


@pytest.fixture
def web_broker(tmp_path: Path) -> Iterator[Ejabberd]:
    """Start a broker with TLS; `ca.pem` is its CA."""
    issue(tmp_path, "server", make_authority(tmp_path, "ca"), "127.0.0.1")
    with Ejabberd(tmp_path, tls=str(tmp_path / "server")) as broker:
        yield broker


def update(controller: Controller, folder: Path, keys: Keys) -> None:
    bundle = make_bundle(folder / "one", keys[0], release=1)
    controller.hold(bundle)
    controller.offer(DEVICE, bundle.desired(1, soak_s=0.1))
    report = controller.wait_for(lambda report: report.state == "COMMITTED")
    assert report.active is not None
    assert report.active.bundle == bundle.ref


def test_an_update_comes_through_a_proxy_and_a_websocket_with_tls(
    tmp_path: Path, web_broker: Ejabberd, release_keys: Keys
) -> None:
    secret = tmp_path / "password"
    secret.write_text("any\n")
    controller = Controller(web_broker.port, user="controller")
    with closing(controller), tinyproxy(tmp_path, web_broker.web_port, password="secret") as proxy:
        device = Device(
            tmp_path / "device",
            f"wss://127.0.0.1:{web_broker.web_port}/mqtt",
            release_keys[1],
            broker_lines=(
                f'ca_file = "{tmp_path}/ca.pem"',
                f'proxy = "http://user:secret@127.0.0.1:{proxy.port}"',
                f'password_file = "{secret}"',
            ),
        )
        with running(device):
            wait_for_line(device, "connected to")
            time.sleep(3.5)  # The broker pings every second, and ends what does not answer.
            update(controller, tmp_path, release_keys)
            assert device.stop() == 0
        assert f"CONNECT 127.0.0.1:{web_broker.web_port}" in proxy.said()
    assert device.said().count("connected to") == 1
    assert "secret" not in device.said()


def test_plain_mqtt_goes_through_a_proxy_that_the_settings_name(
    tmp_path: Path, mosquitto_broker: Broker, controller: Controller, release_keys: Keys
) -> None:
    with tinyproxy(tmp_path, mosquitto_broker.port) as proxy:
        device = Device(
            tmp_path / "device",
            mosquitto_broker.url,
            release_keys[1],
            broker_lines=(f'proxy = "http://127.0.0.1:{proxy.port}"',),
        )
        with running(device):
            update(controller, tmp_path, release_keys)
            assert device.stop() == 0
        assert f"CONNECT 127.0.0.1:{mosquitto_broker.port}" in proxy.said()


@pytest.mark.parametrize(
    ("proxy_line", "password", "said"),
    [
        ("http://user:wrong@127.0.0.1:{proxy}", "secret", "requires a user name and a password"),
        ("http://127.0.0.1:{closed}", "", "cannot be reached: Connection refused"),
        ("http://127.0.0.1:{broker}", "", "is not an HTTP proxy"),
        ("http://127.0.0.1:{proxy}", "", "opens no way to 127.0.0.1:{broker}: HTTP/1.1 403"),
    ],
)
def test_a_proxy_that_opens_no_way_is_named_with_the_reason(
    proxy_line: str,
    password: str,
    said: str,
    tmp_path: Path,
    mosquitto_broker: Broker,
    release_keys: Keys,
) -> None:
    # It opens tunnels to another port alone.
    with tinyproxy(tmp_path, 9, password=password) as proxy:
        ports = {"proxy": proxy.port, "closed": free_port(), "broker": mosquitto_broker.port}
        device = Device(
            tmp_path / "device",
            mosquitto_broker.url,
            release_keys[1],
            broker_lines=(f'proxy = "{proxy_line.format(**ports)}"',),
        )
        with running(device):
            line = wait_for_line(device, "cannot reach the broker")
            assert said.format(**ports) in line
            assert device.stop() == 0
    assert "wrong" not in device.said()


def test_what_is_no_websocket_is_named(
    tmp_path: Path, mosquitto_broker: Broker, release_keys: Keys
) -> None:
    url = f"ws://127.0.0.1:{mosquitto_broker.port}/mqtt"
    device = Device(tmp_path / "device", url, release_keys[1])
    with running(device):
        line = wait_for_line(device, "cannot reach the broker")
        assert "is not a WebSocket" in line
        assert device.stop() == 0


def test_a_controller_speaks_through_proxy_and_websocket(
    tmp_path: Path, web_broker: Ejabberd
) -> None:
    heard: list[tuple[str, bytes]] = []
    with tinyproxy(tmp_path, web_broker.web_port) as proxy:
        access = BrokerAccess(
            url=f"wss://127.0.0.1:{web_broker.web_port}",
            proxy=f"http://127.0.0.1:{proxy.port}",
            ca_file=tmp_path / "ca.pem",
            username="controller",
            password="any",
        )
        link = Link(
            access,
            client_id="controller",
            subscriptions=["chunks"],
            trial=topics.desired(TENANT, "controller"),
            on_message=lambda topic, payload: heard.append((topic, payload)),
            on_connected=lambda: None,
        )
        link.open()
        chunk = bytes(range(256)) * 480
        for _ in range(10):
            assert link.send_chunks("chunks", [chunk] * 4)
        until = time.monotonic() + 400
        while len(heard) < 40 and time.monotonic() < until:
            time.sleep(0.02)
        link.close()
    assert heard == [("chunks", chunk)] * 40


def test_a_controller_is_told_what_is_wrong_with_the_way(
    tmp_path: Path, mosquitto_broker: Broker
) -> None:
    def reach(url: str, proxy: str = "") -> str:
        link = Link(
            BrokerAccess(url=url, proxy=proxy),
            client_id="controller",
            subscriptions=[],
            trial=topics.desired(TENANT, "controller"),
            on_message=lambda _topic, _payload: None,
            on_connected=lambda: None,
        )
        with pytest.raises(TransferError) as caught:
            link.open()
        return caught.value.problem

    assert "is not a WebSocket" in reach(f"ws://127.0.0.1:{mosquitto_broker.port}")
    with tinyproxy(tmp_path, 9) as proxy:
        proxy_url = f"http://127.0.0.1:{proxy.port}"
        assert "opens no way to" in reach(mosquitto_broker.url, proxy_url)
    with pytest.raises(TransferError, match="none of an HTTP proxy"):
        reach(mosquitto_broker.url, "socks5://127.0.0.1:1")

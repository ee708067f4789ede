"""A whole fleet behind the web's port: controller and device at a broker that speaks WebSockets."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from edgepack.fleet.broker.access import BrokerAccess, open_client
from edgepack.fleet.broker.settings.write import write_broker_folder
from edgepack.fleet.data_folder import DataFolder
from edgepack.web.websocket import WebSocketError
from tests.integration.fleet.conftest import CAMERAS, Serve, StartAgent
from tests.simulators import web_ways
from tests.simulators.certificates import issue, make_authority
from tests.simulators.web_ways import Ejabberd, Nginx, tinyproxy


def test_a_rollout_goes_through_websockets_and_a_proxy(
    tmp_path: Path, serve: Serve, start_agent: StartAgent, release: Callable[..., Path]
) -> None:
    web_ways.skip_if_missing()
    issue(tmp_path, "server", make_authority(tmp_path, "ca"), "127.0.0.1")
    password = tmp_path / "password"
    password.write_text("any\n")
    with (
        Ejabberd(tmp_path, tls=str(tmp_path / "server")) as broker,
        tinyproxy(tmp_path, broker.web_port) as proxy,
    ):
        way = f"http://127.0.0.1:{proxy.port}"
        fleet = serve(
            *("--broker", f"wss://127.0.0.1:{broker.web_port}", "--broker-proxy", way),
            *("--broker-ca", str(tmp_path / "ca.pem"), "--broker-user", "controller"),
            *("--broker-password-file", str(password)),
        )
        folder = tmp_path / "cam-1"
        fleet.client.enroll("cam-1", group="cameras", folder=folder, state_dir=folder / "state")
        settings = (folder / "agent.toml").read_text()
        assert f"wss://127.0.0.1:{broker.web_port}" in settings
        own = f'ca_file = "{tmp_path}/ca.pem"\nproxy = "{way}"\npassword_file = "{password}"'
        (folder / "agent.toml").write_text(re.sub(r"ca_file = .*", own, settings))
        start_agent(fleet, "cam-1")
        fleet.wait_until(lambda: fleet.info().online == 1, "the agent is online")
        rollout = fleet.roll_out(release(1), to=CAMERAS, deadline_s=400.0)
        view = fleet.wait_for(rollout, "FINISHED", "PAUSED")
        assert view.counts == {"COMMITTED": 1}, view
        assert fleet.stop() == 0
        assert proxy.said().count(f"CONNECT 127.0.0.1:{broker.web_port}") >= 2


_WEBSOCKETS = """
ssl_client_certificate {folder}/ca.crt;
ssl_crl {folder}/ca.crl;
ssl_verify_client on;
location /mqtt {{
  proxy_pass http://127.0.0.1:{port}/mqtt;
  proxy_http_version 1.1;
  proxy_set_header Upgrade $http_upgrade;
  proxy_set_header Connection "upgrade";
}}
"""


def test_by_wss_controller_and_devices_show_certificates_and_nobody_gets_in_without(
    tmp_path: Path, serve: Serve, start_agent: StartAgent, release: Callable[..., Path]
) -> None:
    """The web server before the broker requires certificates of the fleet's authority."""
    web_ways.skip_if_missing()
    folder = write_broker_folder(
        DataFolder(tmp_path / "fleet"),
        folder=tmp_path / "broker",
        hosts=("127.0.0.1",),
        port=8883,
        tenant="default",
    ).parent
    shutil.copy(folder / "server.crt", folder / "server.pem")
    with Ejabberd(tmp_path) as broker:
        lines = _WEBSOCKETS.format(folder=folder, port=broker.web_port)
        with Nginx(tmp_path / "nginx", tmp_path, lines=lines, tls=str(folder / "server")) as web:
            url = f"wss://127.0.0.1:{web.port}/mqtt"
            # The broker itself sees no certificate, and wants a name and a password.
            password = tmp_path / "password"
            password.write_text("any\n")
            login = ("--broker-user", "controller", "--broker-password-file", str(password))
            fleet = serve("--broker", url, *login)
            assert fleet.info().broker_is_tls
            device = tmp_path / "cam-1"
            fleet.client.enroll("cam-1", group="cameras", folder=device, state_dir=device / "state")
            settings = (device / "agent.toml").read_text()
            own = f'[broker]\npassword_file = "{password}"'
            (device / "agent.toml").write_text(settings.replace("[broker]", own))
            start_agent(fleet, "cam-1")
            fleet.wait_until(lambda: fleet.info().online == 1, "the agent is online")
            assert fleet.client.device("cam-1").certificate
            rollout = fleet.roll_out(release(1), to=CAMERAS, deadline_s=400.0)
            view = fleet.wait_for(rollout, "FINISHED", "PAUSED")
            assert view.counts == {"COMMITTED": 1}, view
            authority = tmp_path / "fleet/pki/ca.crt"
            nobody = BrokerAccess(url=url, ca_file=authority)
            with pytest.raises(WebSocketError, match="HTTP status 400"):
                open_client(nobody, "cam-2").connect_somewhere()
            issue(tmp_path, "stranger", make_authority(tmp_path, "foreign"), "cam-1")
            stranger = BrokerAccess(
                url=url,
                ca_file=authority,
                cert_file=tmp_path / "stranger.pem",
                key_file=tmp_path / "stranger.key",
            )
            with pytest.raises(WebSocketError, match="HTTP status 400"):
                open_client(stranger, "cam-1").connect_somewhere()
            assert fleet.stop() == 0

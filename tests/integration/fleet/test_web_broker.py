"""A whole fleet behind the web's port: controller and device at a broker that speaks WebSockets."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.fleet.conftest import CAMERAS, FleetProcess, StartAgent
from tests.simulators import web_ways
from tests.simulators.certificates import issue, make_authority
from tests.simulators.web_ways import Ejabberd, tinyproxy


def test_a_rollout_goes_through_websockets_and_a_proxy(
    tmp_path: Path,
    serve: Callable[..., FleetProcess],
    start_agent: StartAgent,
    release: Callable[..., Path],
) -> None:
    if missing := web_ways.missing():
        pytest.skip(f"not installed: {', '.join(missing)}")
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
        rollout = fleet.roll_out(release(1), to=CAMERAS, deadline_s=60.0)
        view = fleet.wait_for(rollout, "FINISHED", "PAUSED", timeout_s=120)
        assert view.counts == {"COMMITTED": 1}, view
        assert fleet.stop() == 0
        assert proxy.said().count(f"CONNECT 127.0.0.1:{broker.web_port}") >= 2

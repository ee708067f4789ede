"""Clients that begin requests and never end the requests, against a real `edgepack fleet serve`."""

import shutil
from pathlib import Path

import pytest

from edgepack.fleet.client.fleet_client import FleetClient
from tests.integration.fleet.conftest import Mosquitto, Serve
from tests.simulators.half_sent import HalfSent
from tests.simulators.waiting import wait_until

COUNT = 1_300
MAX_LOG_BYTES = 100_000
FEW_DESCRIPTORS = "1024:1024"
MANY_DESCRIPTORS = "1024:8192"


@pytest.mark.parametrize(
    ("kind", "descriptors"), [("head", FEW_DESCRIPTORS), ("body", MANY_DESCRIPTORS)]
)
def test_1300_half_sent_requests_do_not_stop_the_api_or_the_broker_connection(
    serve: Serve, mosquitto: Mosquitto, tmp_path: Path, kind: str, descriptors: str
) -> None:
    prlimit = shutil.which("prlimit")
    if prlimit is None:
        pytest.skip("prlimit is not installed (Debian package util-linux)")
    fleet = serve("--broker", mosquitto.url, before=(prlimit, f"--nofile={descriptors}"))
    attack = HalfSent(fleet.port, COUNT, kind)
    try:
        wait_until(lambda: attack.opened > COUNT, "the attack opened its connections")
        client = FleetClient(fleet.url, data=fleet.data)
        for _ in range(5):
            assert client.info().is_connected
        mosquitto.stop()
        wait_until(lambda: not client.info().is_connected, "the controller lost the broker")
        before = attack.opened
        mosquitto.start()
        wait_until(lambda: client.info().is_connected, "the controller has the broker again")
        wait_until(lambda: attack.opened > before + 100, "the attack goes on")
        assert client.info().is_connected
        assert any("The API dropped" in one for one in client.info().warnings)
    finally:
        attack.stop()
    log = (tmp_path / "serve.log").read_text()
    assert len(log) < MAX_LOG_BYTES
    assert "Traceback" not in log
    assert "connections dropped" in log
    assert fleet.stop() == 0

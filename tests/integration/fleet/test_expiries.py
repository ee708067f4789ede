"""Upcoming expiries are warnings in every view, with the command for the renewal."""

import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from edgepack.agent.enrolment.identity import load_key
from edgepack.fleet.data_folder import DataFolder
from edgepack.fleet.enrolment.authority import Authority
from edgepack.fleet.repository import ceremony
from edgepack.fleet.repository.lifetimes import DAY_S
from edgepack.fleet.repository.repository import ImageRepository
from tests.integration.fleet.conftest import Serve, TlsBroker, edgepack, run_mosquitto
from tests.integration.fleet.dashboard import Visitor
from tests.simulators import warm_programs
from tests.simulators.waiting import wait_until


def test_root_metadata_that_expires_in_four_days_is_a_warning_everywhere(
    serve: Serve, tmp_path: Path
) -> None:
    began = time.time() - 361 * DAY_S
    tuf = DataFolder(tmp_path / "fleet").tuf
    ceremony.init(ImageRepository(tuf, wall=lambda: began), began)
    fleet = serve()
    fleet.client.make_token("prometheus", role="viewer", valid_s=20 * DAY_S)
    wait_until(lambda: any("token" in one for one in fleet.info().warnings), "the token is seen")
    root, token = fleet.info().warnings
    assert "'root' expires in 4 days: edgepack fleet keys renew root" in root
    assert "'prometheus' (viewer) expires in 20 days: edgepack fleet tokens revoke" in token
    assert "keys renew root" in edgepack(fleet, "fleet", "info").stdout
    secret = (fleet.data / "token").read_text()
    page = Visitor(fleet.url).log_in(secret).get("/").text
    needs = page.partition("Needs attention")[2].partition("</section>")[0]
    assert "edgepack fleet keys renew root" in needs
    metrics = Visitor(fleet.url).get("/metrics", Authorization=f"Bearer {secret}").text
    assert 'edgepack_expiring{edgepack_kind="metadata"} 1.0' in metrics
    assert 'edgepack_expiring{edgepack_kind="token"} 1.0' in metrics
    assert 'edgepack_expiring{edgepack_kind="device"} 0.0' in metrics
    assert "'root' expires in 4 days" in (tmp_path / "serve.log").read_text()
    renew = [sys.executable, "-m", "edgepack.cli", "fleet", "keys", "renew", "root"]
    warm_programs.run([*renew, "--data", fleet.data], check=True, capture_output=True)
    wait_until(
        lambda: not any("'root'" in one for one in fleet.info().warnings), "the warning is gone"
    )


def test_certificates_of_broker_api_and_device_that_end_soon_are_warnings(
    serve: Serve, tls_broker: TlsBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path / "fleet" / "pki", certificate_days=20)
    monkeypatch.setenv("EDGEPACK_FLEET_CA", str(authority.ca_file))
    key_file = tls_broker.folder / "server.key"
    key = load_key(key_file.read_bytes(), str(key_file))
    certificate = authority.sign_server(key, ["localhost", "127.0.0.1"])
    (tls_broker.folder / "server.crt").write_text(certificate)
    tls_broker.process.terminate()
    tls_broker.process.wait(400)
    port = int(tls_broker.url.rpartition(":")[2])
    broker = run_mosquitto(tls_broker.folder / "mosquitto.conf", port)
    try:
        fleet = serve(
            *("--broker", tls_broker.url, "--tls-key", str(key_file)),
            *("--tls-cert", str(tls_broker.folder / "server.crt")),
            url_scheme="https",
        )
        fleet.client.enroll("cam-7", group="cameras", folder=tmp_path / "cam-7")
        with closing(sqlite3.connect(fleet.data / "fleet.db")) as database, database:
            database.execute("UPDATE certificates SET expires_at = ?", (time.time() + 5 * DAY_S,))
        wait_until(lambda: len(fleet.info().warnings) == 3, "three certificates end soon")
        said = "\n".join(fleet.info().warnings)
        assert "The broker's certificate expires in 20 days: edgepack fleet broker-config" in said
        assert "The API's certificate expires in 20 days: replace" in said
        assert "certificate of cam-7, not renewed in time, expires in 5 days" in said
        assert "edgepack fleet enroll cam-7 --group GROUP --replace" in said
        assert fleet.stop() == 0
    finally:
        broker.terminate()
        broker.wait(400)

"""Devices get, renew and lose their certificates: real agents on a real mosquitto, mutual TLS."""

import json
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from cryptography import x509
from msgspec.structs import replace

from edgepack.agent.enrolment.asking import ask_for_certificate
from edgepack.agent.enrolment.identity import load_key, make_key, make_signing_request
from edgepack.agent.enrolment.package import read_package
from edgepack.errors import DeviceError
from edgepack.fleet.documents.rollouts import Selector
from edgepack.fleet.enrolment.authority import Authority
from edgepack.fleet.enrolment.certificates import read_certificate
from tests.integration.fleet.conftest import FleetProcess, Serve, edgepack
from tests.integration.fleet.dashboard import Visitor
from tests.integration.fleet.test_removal import gets_in
from tests.simulators import warm_programs, web_ways
from tests.simulators.certificates import issue, make_authority, sign_until
from tests.simulators.waiting import wait_until
from tests.simulators.web_ways import Nginx

DAY_S = 86400.0


def agent_command(*words: str) -> "subprocess.CompletedProcess[str]":
    return warm_programs.run(
        [sys.executable, "-m", "edgepack.agent.cli", *words],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )


@contextmanager
def running_agent(config: Path) -> Iterator[Path]:
    """Run an agent as a process; yield its log."""
    log_file = config.with_suffix(".log")
    with log_file.open("a") as log:
        process = warm_programs.Popen(
            [sys.executable, "-m", "edgepack.agent.cli", "run", "--config", str(config)],
            stdout=log,
            stderr=log,
        )
    try:
        yield log_file
    finally:
        process.terminate()
        assert process.wait(400) == 0, log_file.read_text()


def enroll(fleet: FleetProcess, folder: Path, *words: str) -> Path:
    """Enrol `cam-1`; return its package."""
    folder.mkdir(exist_ok=True)
    package = folder / "cam-1.enrol"
    place = ("--package", str(package), "--state-dir", str(folder / "state"))
    done = edgepack(fleet, "fleet", "enroll", "cam-1", "--group", "g", *place, *words)
    assert done.returncode == 0, done.stderr
    return package


def is_online(fleet: FleetProcess) -> bool:
    return fleet.client.device("cam-1").online


def warning(fleet: FleetProcess) -> str:
    """Return the device's warning about its certificate."""
    said = fleet.client.device("cam-1").warnings
    return next((one for one in said if "certificate" in one), "")


def tell_broker(fleet: FleetProcess) -> "list[int]":
    """Give the broker the list of revoked certificates; return their numbers."""
    path = fleet.broker_folder / "ca.crl"
    done = edgepack(fleet, "fleet", "revocations", "-o", str(path))
    assert done.returncode == 0, done.stderr
    assert fleet.broker is not None
    fleet.broker.send_signal(signal.SIGHUP)
    return [one.serial_number for one in x509.load_pem_x509_crl(path.read_bytes())]


def give_old_certificate(
    fleet: FleetProcess, certificate: Path, left_days: float, pki: Path | None = None
) -> str:
    """Replace the device's certificate by an old certificate of the fleet's CA or another CA."""
    key = load_key(certificate.with_name("device.key").read_bytes(), "")
    old = sign_until(pki or fleet.data / "pki", key, "cam-1", left_s=left_days * DAY_S)
    facts = read_certificate(old)
    with closing(sqlite3.connect(fleet.data / "fleet.db")) as database, database:
        database.execute(
            "UPDATE certificates SET serial = ?, expires_at = ?, pem = ?",
            (facts.serial, facts.expires_at, old),
        )
    certificate.write_text(old)
    return old


def test_a_device_makes_its_key_itself_and_its_token_is_good_once(
    tls_fleet: FleetProcess, tmp_path: Path
) -> None:
    package = enroll(tls_fleet, tmp_path / "carried", "--enrol-at", tls_fleet.url)
    assert package.stat().st_mode & 0o777 == 0o600
    assert "PRIVATE KEY" not in package.read_text()
    assert tls_fleet.client.device("cam-1").certificate == ""
    etc = tmp_path / "cam-1"
    done = agent_command("enroll", str(package), "--folder", str(etc))
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"this is cam-1: edgepack-agent run --config {etc / 'agent.toml'}\n"
    assert done.stderr == ""
    facts = read_certificate((etc / "device.crt").read_text())
    shown = tls_fleet.client.device("cam-1")
    assert (shown.certificate, shown.certificate_ends_at) == (facts.serial, facts.expires_at)
    assert shown.certificate_pem == (etc / "device.crt").read_text()
    with running_agent(etc / "agent.toml"):
        tls_fleet.wait_until(lambda: is_online(tls_fleet), "the device reports")
        said = edgepack(tls_fleet, "fleet", "devices", "log", "cam-1", "--wait", "5m")
        assert said.returncode == 0, said.stderr
        assert " INFO connected to " in said.stdout
        assert "***" not in said.stdout
    with (etc / "agent.toml").open("a") as settings:
        settings.write("\n[logs]\nsend = false\n")
    with running_agent(etc / "agent.toml"):
        said = edgepack(tls_fleet, "fleet", "devices", "log", "cam-1", "--wait", "5m")
        assert said.returncode == 1
        assert "the device refused: the device's settings do not allow" in said.stdout
    visitor = Visitor(tls_fleet.url).log_in((tls_fleet.data / "token").read_text())
    page = visitor.get("/devices/cam-1").text
    assert "The device refused: the device&#39;s settings do not allow log lines" in page
    assert 'action="/devices/cam-1/log"' in page
    log = (tls_fleet.data.parent / "serve.log").read_text()
    assert read_package(package).token not in log

    stolen = agent_command("enroll", str(package), "--folder", str(tmp_path / "thief"))
    assert stolen.returncode == 1
    assert "this token was used already, for another key" in stolen.stderr
    assert not (tmp_path / "thief/device.crt").exists()
    assert "token was used for another key" in (tls_fleet.data.parent / "serve.log").read_text()
    entries = json.loads(edgepack(tls_fleet, "fleet", "audit", "--json").stdout)
    assert "certificate.issue" in [entry["action"] for entry in entries]


def test_what_shows_no_token_gets_no_certificate(tls_fleet: FleetProcess, tmp_path: Path) -> None:
    package = read_package(enroll(tls_fleet, tmp_path, "--enrol-at", tls_fleet.url))
    request = make_signing_request(make_key(), "cam-1").decode()
    for token in ("", "x", "x" * 5000, tls_fleet.client.make_token("a", role="admin").token):
        with pytest.raises(DeviceError, match="this is not a token to enrol with"):
            ask_for_certificate(replace(package, token=token), request)
    with pytest.raises(DeviceError, match="the certificate request cannot be read"):
        ask_for_certificate(package, "nothing")
    with pytest.raises(DeviceError, match="the request is over 16384 bytes"):
        ask_for_certificate(package, "x" * 20_000)
    tls_fleet.client.remove_devices(["cam-1"])
    with pytest.raises(DeviceError, match="this is not a token to enrol with"):
        ask_for_certificate(package, request)


def test_a_device_that_does_not_reach_the_fleet_gets_its_key_in_the_package(
    tls_fleet: FleetProcess, tmp_path: Path
) -> None:
    package = enroll(tls_fleet, tmp_path / "carried")
    etc = tmp_path / "cam-1"
    done = agent_command("enroll", str(package), "--folder", str(etc))
    assert done.returncode == 0, done.stderr
    assert "holds the device's private key: delete it" in done.stderr
    assert (etc / "device.key").stat().st_mode & 0o777 == 0o600
    assert gets_in(etc)
    again = enroll(tls_fleet, tmp_path / "again", "--replace")
    assert agent_command("enroll", str(again), "--folder", str(etc)).returncode == 0
    tell_broker(tls_fleet)
    tls_fleet.wait_until(lambda: gets_in(etc), "the new one is let in")


def test_a_certificate_is_renewed_before_it_ends_and_all_of_it_ends_with_the_device(
    tls_fleet: FleetProcess, tmp_path: Path
) -> None:
    etc = tmp_path / "cam-1"
    package = enroll(tls_fleet, tmp_path / "carried", "--enrol-at", tls_fleet.url)
    assert agent_command("enroll", str(package), "--folder", str(etc)).returncode == 0
    key = (etc / "device.key").read_bytes()
    old = give_old_certificate(tls_fleet, etc / "device.crt", left_days=80)
    with running_agent(etc / "agent.toml") as log:
        wait_until(lambda: (etc / "device.crt").read_text() != old, "it has another certificate")
        wait_until(lambda: "the certificate was renewed, until" in log.read_text(), "it says so")
        tls_fleet.wait_until(lambda: is_online(tls_fleet), "it is online")
        assert warning(tls_fleet) == ""
    assert (etc / "device.key").read_bytes() == key
    newer = read_certificate((etc / "device.crt").read_text())
    assert newer.expires_at - time.time() > 800 * DAY_S
    assert tls_fleet.client.device("cam-1").certificate == newer.serial
    assert gets_in(etc), "the broker takes the new one"
    (entry,) = [
        entry
        for entry in json.loads(edgepack(tls_fleet, "fleet", "audit", "--json").stdout)
        if entry["action"] == "certificate.renew"
    ]
    assert entry["device"] == "cam-1"

    tls_fleet.client.remove_devices(["cam-1"])
    revoked = {f"{number:x}" for number in tell_broker(tls_fleet)}
    assert {newer.serial, read_certificate(old).serial} <= revoked
    tls_fleet.wait_until(lambda: not gets_in(etc), "the broker refuses the new one")
    (etc / "device.crt").write_text(old)
    assert not gets_in(etc), "and the old one"


def test_devices_stay_connected_while_the_authority_is_renewed(
    tls_fleet: FleetProcess, tmp_path: Path
) -> None:
    authority, broker = tls_fleet.data / "pki" / "ca.crt", tmp_path / "broker" / "ca.crt"
    Authority(authority.parent).renew(days=100)  # As if the fleet were old.
    early = authority.read_text()
    broker.write_text(early)
    tell_broker(tls_fleet)
    etc = tmp_path / "cam-1"
    package = enroll(tls_fleet, tmp_path / "carried", "--enrol-at", tls_fleet.url)
    assert agent_command("enroll", str(package), "--folder", str(etc)).returncode == 0
    assert (etc / "ca.crt").read_text() == early
    with running_agent(etc / "agent.toml") as log:
        tls_fleet.wait_until(lambda: is_online(tls_fleet), "the device reports")
        renew = [sys.executable, "-m", "edgepack.cli", "fleet", "keys", "renew-authority"]
        subprocess.run([*renew, "--data", tls_fleet.data], check=True, capture_output=True)
        assert authority.read_text() != early
        assert gets_in(etc), "device and broker have the earlier one"
        broker.write_text(authority.read_text())
        tell_broker(tls_fleet)
        assert gets_in(etc), "the device has the earlier one, the broker the new one"
        assert "cannot reach" not in log.read_text()
    old = give_old_certificate(tls_fleet, etc / "device.crt", left_days=80)
    with running_agent(etc / "agent.toml") as log:
        wait_until(lambda: (etc / "ca.crt").read_text() == authority.read_text(), "it has the new")
        assert (etc / "device.crt").read_text() != old
        assert gets_in(etc)
        wait_until(lambda: "authority was renewed" in log.read_text(), "it says so")
        assert warning(tls_fleet) == ""


def test_an_agent_whose_certificate_is_not_renewed_serves_on_and_reports_it(
    tls_fleet: FleetProcess, tmp_path: Path
) -> None:
    etc = tmp_path / "cam-1"
    package = enroll(tls_fleet, tmp_path / "carried")
    assert agent_command("enroll", str(package), "--folder", str(etc)).returncode == 0
    # It shows the broker a certificate of the fleet, and signs with one of another authority.
    Authority(tmp_path / "foreign")
    own = etc / "own.crt"
    old = give_old_certificate(tls_fleet, own, left_days=20, pki=tmp_path / "foreign")
    config = etc / "agent.toml"
    before, after = config.read_text().split("[identity]")
    config.write_text(f"{before}[identity]{after.replace('device.crt', 'own.crt')}")
    with running_agent(etc / "agent.toml"):
        tls_fleet.wait_until(
            lambda: "this device's certificate ends on" in warning(tls_fleet), "it warns of it"
        )
        shown = tls_fleet.client.device("cam-1")
        assert shown.online
        assert shown.dropped == {"certificate not renewed": 1}
        told = edgepack(tls_fleet, "fleet", "devices", "show", "cam-1").stdout
        assert "1 certificate not renewed" in told
    assert own.read_text() == old


def test_a_device_believes_the_https_of_the_authority_in_its_package_and_of_no_other(
    tls_fleet: FleetProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("good", "bad"):
        authority = make_authority(tmp_path, name)
        issue(tmp_path, f"{name}-server", authority, "api")
    tls_fleet.stop()
    tls_fleet.url = tls_fleet.url.replace("http", "https")
    pair = (str(tmp_path / "good-server.pem"), str(tmp_path / "good-server.key"))
    tls_fleet.arguments += ("--tls-cert", pair[0], "--tls-key", pair[1])
    monkeypatch.setenv("EDGEPACK_FLEET_CA", str(tmp_path / "good.pem"))
    tls_fleet.start()
    words = ("--enrol-at", tls_fleet.url, "--enrol-ca")
    wrong = enroll(tls_fleet, tmp_path / "wrong", *words, str(tmp_path / "bad.pem"))
    etc = tmp_path / "cam-1"
    refused = agent_command("enroll", str(wrong), "--folder", str(etc))
    assert refused.returncode == 1
    assert "its certificate is not trusted" in refused.stderr
    right = enroll(tls_fleet, tmp_path / "right", *words, str(tmp_path / "good.pem"), "--replace")
    done = agent_command("enroll", str(right), "--folder", str(etc))
    assert done.returncode == 0, done.stderr
    assert gets_in(etc)


def test_without_tls_at_the_broker_a_device_has_a_certificate_that_is_renewed(
    serve: Serve, tmp_path: Path
) -> None:
    fleet = serve()
    package = enroll(fleet, tmp_path / "carried", "--enrol-at", fleet.url)
    etc = tmp_path / "cam-1"
    assert agent_command("enroll", str(package), "--folder", str(etc)).returncode == 0
    old = give_old_certificate(fleet, etc / "device.crt", left_days=80)
    with running_agent(etc / "agent.toml"):
        fleet.wait_until(lambda: is_online(fleet), "the device reports")
        wait_until(lambda: (etc / "device.crt").read_text() != old, "it has another certificate")
    newer = read_certificate((etc / "device.crt").read_text())
    assert fleet.client.device("cam-1").certificate == newer.serial


def test_sources_are_set_at_the_fleet_or_for_one_device_and_bundles_come_from_there(
    serve: Serve, tmp_path: Path, release: Callable[..., Path]
) -> None:
    web_ways.skip_if_missing()
    archive = release(1)
    (tmp_path / "files").mkdir()
    shutil.copy(archive, tmp_path / "files/tiny-1.1.0.edgepack")
    with Nginx(tmp_path / "nginx", tmp_path / "files") as server:
        url = f"http://127.0.0.1:{server.port}/{{name}}-{{version}}.edgepack"
        fleet = serve("--source", "https://files.example/{digest}", "--source", url)
        carried = read_package(enroll(fleet, tmp_path / "one"))
        assert carried.sources == ("https://files.example/{digest}", url)
        fleet.client.remove_devices(["cam-1"])
        package = enroll(fleet, tmp_path / "two", "--source", url)
        assert read_package(package).sources == (url,)
        etc = tmp_path / "cam-1"
        done = agent_command("enroll", str(package), "--folder", str(etc))
        assert done.returncode == 0, done.stderr
        with running_agent(etc / "agent.toml"):
            fleet.wait_until(lambda: is_online(fleet), "the device reports")
            rollout = fleet.roll_out(archive, to=Selector(kind="group", group="g"))
            assert fleet.wait_for(rollout, "FINISHED").counts == {"COMMITTED": 1}
        assert [status for _, status, _ in server.answers()].count(206) > 0
    place = ("--package", str(tmp_path / "x"), "--group", "g")
    wrong = edgepack(fleet, "fleet", "enroll", "x", *place, "--source", "https://files.example/")
    assert wrong.returncode == 1
    assert "a source cannot be used: it names no bundle" in wrong.stderr
    assert "try: --source 'https://" in wrong.stderr

"""A removed device's credentials work no longer: on a real mosquitto, over mutual TLS."""

import json
import signal
import sqlite3
import ssl
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from edgepack.agent.config import read_config
from edgepack.errors import FleetError
from edgepack.fleet.broker.access import BrokerAccess, open_client
from edgepack.wire import topics
from tests.integration.fleet.conftest import Serve, TlsBroker, edgepack
from tests.simulators import warm_programs

WILL = b'{"v":1,"online":false,"at":1}'
"""What a device may say without a signature."""


def gets_in(folder: Path) -> bool:
    """Return whether the broker accepts a device with the credentials of a folder."""
    broker = read_config(folder / "agent.toml").broker
    assert broker is not None
    access = BrokerAccess(
        url=broker.url,
        ca_file=Path(broker.ca_file),
        cert_file=Path(broker.cert_file),
        key_file=Path(broker.key_file),
    )
    client = open_client(access, folder.name)
    answered = threading.Event()
    taken: list[bool] = []

    def connected(*arguments: Any) -> None:
        taken.append(not arguments[3].is_failure)
        answered.set()

    client.on_connect = connected
    client.on_disconnect = lambda *_: answered.set()
    try:
        client.connect_somewhere()
    except ssl.SSLError:
        return False
    client.loop_start()
    assert answered.wait(400), "the broker neither took nor refused it"
    if taken:
        topic = topics.up("default", folder.name, "reported")
        client.publish(topic, WILL, qos=1).wait_for_publish(30)
    client.disconnect()
    client.loop_stop()
    return taken == [True]


def tell_broker(fleet: Any, broker_folder: Path, broker: Any) -> None:
    done = edgepack(fleet, "fleet", "revocations", "-o", str(broker_folder / "ca.crl"))
    assert done.returncode == 0, done.stderr
    broker.send_signal(signal.SIGHUP)


def enroll(fleet: Any, folder: Path, *words: str) -> Any:
    return edgepack(
        fleet, "fleet", "enroll", folder.name, "--group", "g", "-o", str(folder), *words
    )


def test_the_broker_refuses_a_removed_device_and_the_controller_ignores_it(
    tls_fleet: Any, tmp_path: Path
) -> None:
    one, other = tmp_path / "cam-1", tmp_path / "cam-2"
    for folder in (one, other):
        assert enroll(tls_fleet, folder).returncode == 0
        assert gets_in(folder)
    tls_fleet.wait_until(lambda: tls_fleet.info().counters.get("reported") == 2, "both are heard")
    removed = edgepack(tls_fleet, "fleet", "devices", "remove", "cam-1", "--json")
    assert [entry["device"] for entry in json.loads(removed.stdout)] == ["cam-1"]
    assert [view.device for view in tls_fleet.client.devices()] == ["cam-2"]
    # The broker does not know yet: whatever it lets through, the controller does not listen.
    before = tls_fleet.info().counters.get("not_enrolled", 0)
    assert gets_in(one)
    tls_fleet.wait_until(
        lambda: tls_fleet.info().counters.get("not_enrolled", 0) > before, "it is ignored"
    )
    tell_broker(tls_fleet, tls_fleet.broker_folder, tls_fleet.broker)
    tls_fleet.wait_until(lambda: not gets_in(one), "the broker refuses it")
    assert gets_in(other)
    again = tmp_path / "again" / "cam-1"
    assert enroll(tls_fleet, again).returncode == 0
    assert gets_in(again), "a new certificate of the same name is another one"
    assert not gets_in(one)


def test_a_replaced_device_gets_new_credentials_and_the_old_ones_end(
    tls_fleet: Any, tmp_path: Path
) -> None:
    lost, found = tmp_path / "lost" / "cam-1", tmp_path / "found" / "cam-1"
    assert enroll(tls_fleet, lost).returncode == 0
    refused = enroll(tls_fleet, found)
    assert refused.returncode == 1
    assert "error: device cam-1 is enrolled already, in group g" in refused.stderr
    assert not found.exists()
    assert enroll(tls_fleet, found, "--replace").returncode == 0
    tell_broker(tls_fleet, tls_fleet.broker_folder, tls_fleet.broker)
    tls_fleet.wait_until(lambda: not gets_in(lost), "the broker refuses the old one")
    assert gets_in(found)


def test_a_certificate_without_a_number_is_not_revoked_says_so_and_is_revoked_by_its_file(
    tls_fleet: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "cam-1"
    assert enroll(tls_fleet, folder).returncode == 0
    with closing(sqlite3.connect(tls_fleet.data / "fleet.db")) as database, database:
        database.execute("UPDATE devices SET certificate = ''")  # as migration 4 left it
        database.execute("DELETE FROM certificates")
    removed = edgepack(tls_fleet, "fleet", "devices", "remove", "cam-1")
    assert removed.stdout.splitlines()[0] == "cam-1 is removed"
    assert "the certificate of cam-1 is not revoked" in removed.stdout
    tell_broker(tls_fleet, tls_fleet.broker_folder, tls_fleet.broker)
    assert gets_in(folder)
    words = ("fleet", "revocations", "-o", str(tls_fleet.broker_folder / "ca.crl"), "--revoke")
    for wrong in (folder / "agent.toml", folder / "no.crt", folder / "ca.crt"):
        refused = edgepack(tls_fleet, *words, str(wrong))
        assert refused.returncode == 1, wrong
        assert "certificate" in refused.stderr
        assert "Traceback" not in refused.stderr
    done = edgepack(tls_fleet, *words, str(folder / "device.crt"))
    assert "1 certificate revoked" in done.stdout, done.stderr
    tls_fleet.broker.send_signal(signal.SIGHUP)
    tls_fleet.wait_until(lambda: not gets_in(folder), "the broker refuses it")


def test_a_later_broker_folder_still_knows_what_was_revoked(tls_fleet: Any, tmp_path: Path) -> None:
    from cryptography import x509

    assert enroll(tls_fleet, tmp_path / "cam-1").returncode == 0
    serial = tls_fleet.client.device("cam-1").certificate
    tls_fleet.client.remove_devices(["cam-1"])
    folder = tmp_path / "another"
    done = edgepack_offline(tls_fleet, "broker-config", "--host", "localhost", "-o", str(folder))
    assert done.returncode == 0, done.stderr
    revoked = x509.load_pem_x509_crl((folder / "ca.crl").read_bytes())
    assert [f"{one.serial_number:x}" for one in revoked] == [serial]
    with pytest.raises(FleetError, match="cannot write the list of revoked certificates"):
        tls_fleet.client.revocations(tmp_path / "no" / "such" / "ca.crl")


def edgepack_offline(fleet: Any, *words: str) -> Any:
    import sys

    command = [sys.executable, "-m", "edgepack.cli", "fleet", *words, "--data", str(fleet.data)]
    return warm_programs.run(command, capture_output=True, text=True, check=False)


def test_a_program_tells_the_broker_and_its_failure_is_a_warning_until_it_succeeds(
    serve: Serve, tls_broker: TlsBroker, tmp_path: Path
) -> None:
    program, place = tmp_path / "tell-broker", tls_broker.folder / "ca.crl"
    is_broken = tmp_path / "broken"
    program.write_text(
        f"""#!/bin/sh
set -e
if [ -e {is_broken} ]; then echo "no way to the broker" >&2; exit 3; fi
cp "$EDGEPACK_REVOCATIONS" {place}
kill -HUP {tls_broker.process.pid}
"""
    )
    program.chmod(0o755)
    written = place.stat().st_mtime_ns
    fleet = serve("--broker", tls_broker.url, "--on-revocation", str(program))
    fleet.wait_until(lambda: place.stat().st_mtime_ns != written, "it runs at the start")
    one, other = tmp_path / "cam-1", tmp_path / "cam-2"
    for folder in (one, other):
        assert enroll(fleet, folder).returncode == 0
        assert gets_in(folder)
    fleet.client.remove_devices(["cam-1"])
    fleet.wait_until(lambda: not gets_in(one), "the broker refuses it, by nobody's hand")
    assert gets_in(other)
    is_broken.touch()
    fleet.client.remove_devices(["cam-2"])
    fleet.wait_until(lambda: bool(fleet.info().warnings), "it is said")
    (said,) = fleet.info().warnings
    assert said.startswith("the broker may not know of revoked certificates yet: ")
    assert said.endswith(f"{program} failed: exit code 3: no way to the broker")
    assert gets_in(other)
    is_broken.unlink()
    fleet.wait_until(lambda: not gets_in(other), "it is tried again")
    fleet.wait_until(lambda: fleet.info().warnings == (), "nothing is left to say")

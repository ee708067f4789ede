"""Settings for brokers that do not run here have the right form and rules."""

import os
import re
import shlex
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner
from pyhocon import ConfigFactory

from edgepack.fleet.broker.settings.write import KINDS, write_broker_folder
from edgepack.fleet.commands.fleet import fleet
from edgepack.fleet.data_folder import DataFolder
from edgepack.wire import topics
from edgepack.wire.messages import MAX_MESSAGE_BYTES

ROOT = "ep/1/berlin"


def write(tmp_path: Path, kind: str, folder: str = "broker") -> Path:
    return write_broker_folder(
        DataFolder(tmp_path / "fleet"),
        kind=kind,
        folder=tmp_path / folder,
        hosts=("one.example", "two.example"),
        port=8883,
        tenant="berlin",
        controllers=2,
    ).parent


def controllers(tmp_path: Path) -> list[str]:
    data = DataFolder(tmp_path / "fleet")
    return [data.controller(0), data.controller(1), data.leader_client_id()]


def test_emqx_knows_clients_by_their_certificates_and_bounds_them(tmp_path: Path) -> None:
    folder = write(tmp_path, "emqx")
    found = ConfigFactory.parse_file(str(folder / "emqx.conf"))
    assert found["mqtt.peer_cert_as_username"] == found["mqtt.peer_cert_as_clientid"] == "cn"
    assert found["mqtt.max_packet_size"] == f"{2 * MAX_MESSAGE_BYTES // 1024}KB"
    assert found["authorization.no_match"] == "deny"
    assert found["authorization.sources"][0]["path"] == str(folder / "acl.conf")
    for name in ("default", "controllers"):
        options = found[f"listeners.ssl.{name}.ssl_options"]
        assert (options["verify"], options["fail_if_no_peer_cert"]) == ("verify_peer", True)
        for file in ("cacertfile", "certfile", "keyfile"):
            assert Path(options[file]).is_file()
    assert found["listeners.ssl.default.messages_rate"] == "100/s"
    assert found["listeners.tcp.default.enable"] is False


def test_emqx_lets_a_device_read_and_write_by_four_patterns(tmp_path: Path) -> None:
    folder = write(tmp_path, "emqx")
    rules = re.sub(r"%%.*", "", (folder / "acl.conf").read_text())
    terms = [" ".join(one.split()) for one in rules.split("}.") if one.strip()]
    assert terms[-1] == "{deny, all"
    device = "d/${username}"
    written = ", ".join(f'"{ROOT}/{device}/up/{kind}"' for kind in topics.UP_KINDS)
    assert terms[:-1] == [
        *(f'{{allow, {{username, "{name}"}}, all, ["{ROOT}/#"]' for name in controllers(tmp_path)),
        f'{{allow, all, subscribe, ["{ROOT}/{device}/dn/#", "{ROOT}/b/#", "{ROOT}/meta/#"]',
        f"{{allow, all, publish, [{written}]",
    ]


def test_hivemqs_files_are_well_formed_wherever_they_lie(tmp_path: Path) -> None:
    folder = write(tmp_path, "hivemq", folder="<a> & b")
    settings, security, realm = (ElementTree.parse(folder / name) for name in KINDS["hivemq"].files)
    listener = "listeners/tls-tcp-listener"
    assert settings.findtext(f"{listener}/tls/client-authentication-mode") == "REQUIRED"
    assert settings.findtext(f"{listener}/tls/keystore/path") == str(folder / "server.p12")
    assert settings.findtext("mqtt/packets/max-packet-size") == str(2 * MAX_MESSAGE_BYTES)
    assert security.findtext(".//x509-field") == "subject-common-name"
    assert security.findtext(".//file-path") == str(folder / "hivemq-realm.xml")
    roles = {role.findtext("id"): role for role in realm.iterfind("mqtt-roles/mqtt-role")}
    granted = [
        (one.findtext("topic"), one.findtext("activity"))
        for one in roles["device"].iterfind("permissions/permission")
    ]
    own = f"{ROOT}/d/${{authentication-key}}"
    assert granted == [
        (f"{own}/dn/#", "SUBSCRIBE"),
        (f"{ROOT}/b/#", "SUBSCRIBE"),
        (f"{ROOT}/meta/#", "SUBSCRIBE"),
        *((f"{own}/up/{kind}", "PUBLISH") for kind in topics.UP_KINDS),
    ]
    users = [user.findtext("name") for user in realm.iterfind("mqtt-users/mqtt-user")]
    assert users[:-1] == controllers(tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_not_run_says_so_and_the_servers_key_is_its_owners(
    tmp_path: Path, kind: str
) -> None:
    folder = write(tmp_path, kind)
    assert (folder / "server.key").stat().st_mode & 0o777 == 0o600
    for name in KINDS[kind].files:
        is_marked = "NOT RUN HERE" in (folder / name).read_text()
        assert is_marked == (not KINDS[kind].is_run_here and name != "acl.conf"), name


def test_a_node_of_ejabberd_finds_its_settings_wherever_they_lie(tmp_path: Path) -> None:
    folder = write(tmp_path, "ejabberd", folder="it's $HOME & b")
    read = f'. {shlex.quote(str(folder))}/ejabberdctl.cfg; cat "$EJABBERD_CONFIG_PATH" "$VMARGS"'
    found = subprocess.run(["sh", "-ec", read], capture_output=True, text=True, check=True).stdout
    assert "module: mod_mqtt" in found
    assert "\n+zdbbl 1048576\n" in found


@pytest.mark.parametrize(
    ("user", "kind", "is_named"),
    [(0, "mosquitto", True), (1000, "mosquitto", False), (0, "ejabberd", False)],
)
def test_root_reads_who_must_own_the_brokers_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: int, kind: str, is_named: bool
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    folder = tmp_path / "the broker"
    words = ["broker-config", kind, "--host", "localhost", "-o", str(folder), "--json"]
    done = CliRunner().invoke(fleet, [*words, "--data", str(tmp_path / "fleet")])
    assert done.exit_code == 0, done.output
    assert (f"chown -R mosquitto '{folder}'" in done.stderr) == is_named
    assert "chown" not in done.stdout

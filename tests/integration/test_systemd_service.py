"""The unit of the repository, and the service under a real systemd in namespaces."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from edgepack.agent.enrolment.package import write_package
from edgepack.agent.service import installation
from edgepack.agent.state.models import DEFAULT_STATE_DIR
from tests.integration.conftest import Keys
from tests.simulators.bundles import make_bundle
from tests.simulators.enrolled import make_package
from tests.simulators.systemd_machine import SystemdMachine, booted, why_not
from tests.simulators.waiting import wait_until

UNIT = installation.UNIT
SOURCE = Path(installation.__file__).with_name(UNIT)
LIMIT = 2.0
"""Exposure by `systemd-analyze security`, 0 to 10: at most."""
SHORT_WATCHDOG = "[Service]\nWatchdogSec=2\nTimeoutAbortSec=1\nRestartSec=100ms\n"
BREAKS = {
    "MemoryDenyWriteExecute",
    "PrivateDevices",
    "PrivateUsers",
    "ProcSubset",
    "ProtectProc",
    "RemoveIPC",
    "RestrictSUIDSGID",
}
"""Settings that break a provider, the folders of applications, or the watch."""
QNN = "onnxruntime_qnn"
READY = """
import socket
with socket.socket(socket.AF_UNIX) as client:
    client.connect("/var/lib/edgepack/latency/server.sock")
    client.sendall(b"GET /v2/models/tiny/ready HTTP/1.1\\r\\nHost: e\\r\\n\\r\\n")
    assert b" 200 " in client.recv(99)
"""


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed")
def test_the_unit_is_valid_and_confines_the_agent(tmp_path: Path) -> None:
    unit = tmp_path / UNIT
    unit.write_text(SOURCE.read_text().replace(installation.PACKAGED_PROGRAM, "/bin/true"))
    verified = analyze("verify", str(unit))
    assert verified.returncode == 0, verified.stderr
    assert verified.stderr == ""
    scored = analyze("security", "--offline=true", str(unit))
    level = re.search(r"Overall exposure level for \S+: ([\d.]+)", scored.stdout)
    assert level, scored.stderr
    assert float(level[1]) <= LIMIT
    set_keys = {line.partition("=")[0] for line in SOURCE.read_text().splitlines()}
    assert set_keys & BREAKS == set()


def analyze(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", *words],
        capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"], "LANG": "C.UTF-8"},
        check=False,
    )


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[SystemdMachine]:
    if because := why_not():
        pytest.skip(because)
    with booted(SystemdMachine(tmp_path / "machine")) as machine:
        yield machine


def write_enrolment(
    folder: Path, machine: SystemdMachine, key_file: Path, state_dir: str = str(DEFAULT_STATE_DIR)
) -> None:
    """Write an enrolment package with a key on the machine, as `/root/cam-1.enrol`."""
    package = make_package(folder / "pki", key_file, state_dir)
    write_package(machine.root / "root/cam-1.enrol", package)


def main_pid(machine: SystemdMachine) -> str:
    return machine.show(UNIT, "MainPID")


def is_ready(machine: SystemdMachine, user: str) -> bool:
    """Return True if the model server has the model, for an application of a user."""
    asked = machine.run("/opt/edgepack/bin/python", "-c", READY, user=user, check=False)
    return asked.returncode == 0


def set_up(machine: SystemdMachine) -> list[str]:
    return machine.run("edgepack-agent", "setup", "/root/cam-1.enrol").stdout.splitlines()


def test_a_service_is_set_up_reloaded_and_survives_hangs_and_power_cuts(
    tmp_path: Path, machine: SystemdMachine, release_keys: Keys
) -> None:
    bundle = make_bundle(tmp_path / "one", release_keys[0])
    shutil.copytree(bundle.folder, machine.root / "opt/one")

    write_enrolment(tmp_path, machine, release_keys[1])
    # One command; the second run changes nothing and restarts nothing.
    assert f"{UNIT} is enabled and running" in set_up(machine)
    assert machine.show(UNIT, "ActiveState") == "active"
    pid = main_pid(machine)
    assert any("is kept" in line for line in set_up(machine))
    assert main_pid(machine) == pid
    owner = machine.run("stat", "--format=%U %G", f"/proc/{pid}").stdout
    assert owner == "edgepack models\n"

    # A bundle is installed by root, for the agent's user; agent and model server serve the model.
    machine.run("systemctl", "stop", UNIT)
    settings = machine.root / "etc/edgepack/agent.toml"
    settings.write_text(settings.read_text() + "[server]\nenabled = true\n")
    machine.run("edgepack-agent", "install", "/opt/one", "--soak", "0")
    machine.run("systemctl", "start", UNIT)
    wait_until(lambda: machine.show(UNIT, "StatusText").startswith("1 model served"), "the state")
    machine.run("useradd", "--user-group", "--groups", "models", "camera")
    wait_until(lambda: is_ready(machine, "camera"), "the model server")
    files = machine.run("find", "/var/lib/edgepack", "!", "-user", "edgepack").stdout
    assert files == ""
    link = machine.run("readlink", "/var/lib/edgepack/latency").stdout
    assert link.startswith("/run/edgepack/"), "the command keeps the runtime directory"

    # SIGHUP by systemctl reload: a bad file, then a good one, and the same process.
    pid = main_pid(machine)
    text = settings.read_text()
    settings.write_text("this is no TOML")
    machine.run("systemctl", "reload", UNIT)
    wait_until(lambda: "has an error" in machine.show(UNIT, "StatusText"), "the state")
    settings.write_text(text + "[watch]\nslowdown = 3.0\n")
    machine.run("systemctl", "reload", UNIT)
    assert (main_pid(machine), machine.show(UNIT, "ActiveState")) == (pid, "active")

    # A loop that hangs, here in a settings file that never ends, is restarted by the watchdog.
    drop_in = machine.root / "etc/systemd/system" / f"{UNIT}.d" / "short.conf"
    drop_in.parent.mkdir(exist_ok=True)
    drop_in.write_text(SHORT_WATCHDOG)
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "restart", UNIT)
    pid = main_pid(machine)
    settings.rename(good := settings.with_name("good.toml"))
    os.mkfifo(settings)
    machine.run("kill", "-HUP", pid)
    wait_until(lambda: main_pid(machine) != pid, "the end of the agent that hangs")
    good.rename(settings)
    wait_until(lambda: machine.show(UNIT, "ActiveState") == "active", "the restart")
    found = machine.run("edgepack-agent", "doctor", check=False).stdout
    assert re.search("warning +unit +.* was restarted [1-9]", found), found
    drop_in.unlink()

    # Power is cut, and the machine is shut down in order: the service is back after each boot.
    for end in (machine.cut_power, machine.power_off):
        end()
        machine.boot()
        wait_until(lambda: machine.show(UNIT, "ActiveState") == "active", "the start at boot")
        status = machine.run("edgepack-agent", "status").stdout
        assert "agent     running" in status
        assert "active    tiny" in status

    # Removal leaves settings and state alone.
    machine.run("edgepack-agent", "service", "remove")
    assert machine.run("systemctl", "cat", UNIT, check=False).returncode != 0
    etc, state = machine.root / "etc", machine.root / "var/lib/edgepack"
    assert not list(etc.rglob("*edgepack*.conf"))
    assert (state / "models/tiny/active.json").exists()
    assert (etc / "edgepack/device.key").exists()


SANDBOXED = """#!/bin/sh
test "$EDGEPACK_STAGE" = staged && id -un > /var/lib/edgepack/hook-ran
"""


def test_a_probe_hooks_and_providers_work_in_the_sandbox(
    tmp_path: Path, machine: SystemdMachine, release_keys: Keys
) -> None:
    bundle = make_bundle(tmp_path / "one", release_keys[0])
    shutil.copytree(bundle.folder, machine.root / "opt/one")
    state_dir = '/srv/edge "pack" 100%'
    write_enrolment(tmp_path, machine, release_keys[1], state_dir=state_dir)
    assert f"made {state_dir}" in set_up(machine)
    machine.run("systemctl", "stop", UNIT)
    hook = machine.root / "opt/hooks/staged.after.d/10-note"
    hook.parent.mkdir(parents=True)
    hook.write_text(SANDBOXED)
    hook.chmod(0o755)
    settings = machine.root / "etc/edgepack/agent.toml"
    settings.write_text(settings.read_text() + '[hooks]\nfolder = "/opt/hooks"\n')
    said = machine.run_sandboxed("install /opt/one --soak 0", "doctor --json")
    assert (machine.root / "var/lib/edgepack/hook-ran").read_text() == "edgepack\n"
    assert "active    tiny" in machine.run("edgepack-agent", "status").stdout
    assert (machine.root / state_dir[1:] / "models/tiny/active.json").exists()
    facts = [one["fact"] for one in json.loads(said) if one["subject"] == "providers"]
    wanted = ["CPUExecutionProvider", *["QNNExecutionProvider"] * bool(find_spec(QNN))]
    for provider in wanted:
        assert any(one.startswith(provider) and "ran a small model" in one for one in facts), facts


def test_a_rollout_reaches_a_device_that_was_set_up_by_one_command(
    tmp_path: Path, machine: SystemdMachine, release_keys: Keys
) -> None:
    """Run a fleet on the machine: a token, a certificate for a key made there, and a rollout."""
    pytest.importorskip("iotcore", reason="the fleet's embedded broker is not installed")
    bundle = make_bundle(tmp_path / "one", release_keys[0])
    root = machine.root / "root"
    shutil.copytree(bundle.folder, root / "one")
    shutil.copy(release_keys[1], root / "release.pub")
    log = "--property=StandardOutput=file:/root/fleet.log"
    serve = ("/opt/edgepack/bin/edgepack", "fleet", "serve", "--data", "/root/fleet")
    machine.run("systemd-run", "--unit=fleet", log, *serve, "--trust", "/root/release.pub")
    wait_until(lambda: "serves at" in read(root / "fleet.log"), "the fleet")
    fleet = ("--data", "/root/fleet")
    place = ("--enrol-at", "http://127.0.0.1:8600", "--package", "/root/cam-1.enrol")
    machine.run("edgepack", "fleet", "enroll", "cam-1", "--group", "cameras", *place, *fleet)

    # Two commands: set up, and nothing more. A second run uses no token.
    for fact in ("enrolled as cam-1", "is kept"):
        assert any(fact in line for line in set_up(machine))
    machine.run(
        *("edgepack", "rollout", "start", "/root/one", "--group", "cameras"),
        *("--soak", "0", *fleet),
    )
    wait_until(lambda: machine.show(UNIT, "StatusText") == "1 model served", "the rollout")
    listed = json.loads(machine.run("edgepack", "fleet", "devices", "--json", *fleet).stdout)
    assert "COMMITTED" in json.dumps(listed)

    # The examination finds nothing wrong; an application's user learns what is hidden.
    machine.run("useradd", "--user-group", "--groups", "models", "camera")
    found = json.loads(machine.run("edgepack-agent", "doctor", "--json").stdout)
    assert {one["subject"] for one in found if one["verdict"] == "warning"} <= {"clock"}
    assert any("camera" in one["fact"] for one in found if one["subject"] == "users")
    unseen = json.loads(machine.run("edgepack-agent", "doctor", "--json", user="camera").stdout)
    assert next(one for one in unseen if one["subject"] == "key")["verdict"] == "warning"
    refused = machine.run("edgepack-agent", "service", "remove", user="camera", check=False)
    assert "only root" in refused.stderr


def read(path: Path) -> str:
    return path.read_text() if path.exists() else ""

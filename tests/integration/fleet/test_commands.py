"""A fleet's day on the command line, with certificates on a real mosquitto."""

import contextlib
import json
import os
import re
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt
import pytest

from edgepack.agent.config import AgentConfig, read_config
from edgepack.errors import FleetError
from edgepack.fleet.broker.access import BrokerAccess, open_client
from edgepack.wire import topics
from tests.integration.fleet.conftest import MakeBundle, Serve, Simulate, edgepack
from tests.simulators import warm_programs


def test_a_rollout_is_started_watched_and_shown(
    serve: Serve, simulation: Simulate, make_bundle: MakeBundle
) -> None:
    fleet = serve()
    simulation(fleet, count=3)
    done = edgepack(
        fleet,
        *("rollout", "start", str(make_bundle()), "--group", "simulated"),
        *("--waves", "1,100%", "--soak", "0.2", "--deadline", "400"),
    )
    assert done.stdout.splitlines() == [
        "r1: digits 1.0.0 goes to 3 devices in 2 waves",
        "edgepack rollout watch r1",
    ]
    done = edgepack(fleet, "rollout", "watch", "r1")
    assert done.returncode == 0
    last = done.stdout.splitlines()[-1]
    assert "r1 FINISHED wave 2/2: 3 committed; 3 of 3 devices committed, 0 failed" in last
    view = json.loads(edgepack(fleet, "rollout", "status", "r1", "--json").stdout)
    assert view["counts"] == {"COMMITTED": 3}
    assert (
        "r1 digits 1.0.0 for group simulated: FINISHED"
        in edgepack(fleet, "rollout", "status", "r1").stdout
    )
    assert "FINISHED" in edgepack(fleet, "rollout", "list").stdout
    listed = edgepack(fleet, "fleet", "devices", "--group", "simulated").stdout
    assert listed.count("digits 1.0.0") == 3
    assert "3 devices, 3 online" in listed
    info = edgepack(fleet, "fleet", "info").stdout
    assert "{" not in info
    assert re.search(r"devices +3, 3 online", info)
    assert "MB broadcast" in info
    releases = edgepack(fleet, "fleet", "releases").stdout.splitlines()
    assert releases[1].split()[:3] == ["digits", "1.0.0", "1"]


def test_every_command_prints_its_json_alike(finished_fleet: Any) -> None:
    commands = [
        *(f"fleet {word}" for word in ("info", "events", "releases", "groups", "devices")),
        *(f"rollout {words}" for words in ("list", "status r1", "watch r1", "abort r1")),
        "fleet devices show sim-1",
        "fleet devices label sim-1 site=berlin",
        "fleet devices move sim-1 --group doors",
        "fleet devices remove sim-1",
    ]
    for command in commands:
        printed = edgepack(finished_fleet, *command.split(), "--json").stdout
        assert printed == json.dumps(json.loads(printed), indent=2, ensure_ascii=False) + "\n"


def test_a_single_device_and_wave_are_not_several(finished_fleet: Any) -> None:
    assert "1 device, 1 online" in edgepack(finished_fleet, "fleet", "devices").stdout
    assert "wave 1 of 1: 1 device" in edgepack(finished_fleet, "fleet", "events").stdout
    assert "1 of 1 device committed" in edgepack(finished_fleet, "rollout", "status", "r1").stdout


def test_a_finished_rollout_told_to_go_on_or_stop_advises_nothing_worse(
    finished_fleet: Any,
) -> None:
    for act in ("pause", "resume"):
        done = edgepack(finished_fleet, "rollout", act, "r1")
        assert done.stderr.splitlines() == [
            f"error: rollout r1 is FINISHED, so it cannot {act}",
            "  try: edgepack rollout status r1",
        ]


@pytest.fixture
def finished_fleet(serve: Serve, simulation: Simulate, make_bundle: MakeBundle) -> Any:
    """Return a fleet of a single device with a finished rollout."""
    fleet = serve()
    simulation(fleet, count=1)
    fleet.wait_for(fleet.roll_out(make_bundle(), waves="100%"), "FINISHED")
    return fleet


def test_a_rollout_of_a_model_that_devices_do_not_have_yet_says_that_it_adds_it(
    serve: Serve, make_bundle: MakeBundle, tmp_path: Path
) -> None:
    fleet = serve()
    fleet.client.enroll("cam-1", group="g", folder=tmp_path / "cam-1")
    start = ("rollout", "start", str(make_bundle()), "--all", "--waves", "100%")
    done = edgepack(fleet, *start, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1].split() == ["adds", "1", "cam-1"]
    assert fleet.client.rollouts() == ()
    started = edgepack(fleet, *start, "--yes")
    assert started.returncode == 0, started.stderr
    assert "adds" in started.stderr


def test_a_dry_run_says_what_a_rollout_would_mean_and_does_nothing(
    finished_fleet: Any, make_bundle: MakeBundle
) -> None:
    start = ("rollout", "start", str(make_bundle("2.0.0", 2)), "--all", "--dry-run")
    done = edgepack(finished_fleet, *start)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].endswith(") for all devices: 1 device in 1 wave (1)")
    assert lines[1].split() == ["replaces", "1", "digits", "1.0.0:", "sim-1"]
    assert json.loads(edgepack(finished_fleet, *start, "--json").stdout)["counts"] == {
        "replaces": 1
    }
    assert len(finished_fleet.client.releases()) == len(finished_fleet.client.rollouts()) == 1


def test_what_a_rollout_means_is_said_before_it_starts_and_a_script_is_not_asked(
    finished_fleet: Any, make_bundle: MakeBundle
) -> None:
    done = edgepack(finished_fleet, "rollout", "start", str(make_bundle("2.0.0", 2)), "--all")
    assert "replaces" in done.stderr
    assert done.stdout.startswith("r2: digits 2.0.0 goes to 1 device in 1 wave")


def test_a_person_at_a_terminal_is_asked_and_may_say_no(
    finished_fleet: Any, make_bundle: MakeBundle
) -> None:
    words = ("rollout", "start", str(make_bundle("2.0.0", 2)), "--all")
    code, printed = at_a_terminal(finished_fleet, *words, says="n\n")
    assert code == 1
    assert "Start it? [y/N]" in printed
    assert len(finished_fleet.client.rollouts()) == 1
    code, printed = at_a_terminal(finished_fleet, *words, "--yes", says="")
    assert (code, "Start it?" in printed) == (0, False)
    assert len(finished_fleet.client.rollouts()) == 2


def at_a_terminal(fleet: Any, *arguments: str, says: str) -> tuple[int, str]:
    """Return the exit code and the output after a user's input."""
    outer, inner = os.openpty()
    place = ("--data", str(fleet.data), "--url", fleet.url)
    with warm_programs.Popen(
        [sys.executable, "-m", "edgepack.cli", *arguments, *place],
        stdin=inner,
        stdout=subprocess.PIPE,
        stderr=inner,
    ) as process:
        os.write(outer, says.encode())
        printed, _ = process.communicate(timeout=400)
    os.close(inner)
    with contextlib.suppress(OSError):  # Linux says so when the other end is closed
        while piece := os.read(outer, 65536):
            printed += piece
    os.close(outer)
    return process.returncode, printed.decode()


def test_another_content_under_a_name_and_version_is_refused_before_it_is_uploaded(
    finished_fleet: Any, make_bundle: MakeBundle
) -> None:
    held = finished_fleet.client.releases()[0].bundle
    other = make_bundle("1.0.0", 2)
    done = edgepack(finished_fleet, "rollout", "start", str(other), "--all")
    assert done.returncode == 1
    first = done.stderr.splitlines()[0]
    assert first.startswith("error: the fleet holds another content of digits 1.0.0: digits 1.0.0 ")
    assert f"({held.digest[:12]}), and this one is digits 1.0.0 (" in first
    with pytest.raises(FleetError, match=r"another content of digits 1\.0\.0"):
        finished_fleet.client.publish(other)
    assert [view.bundle for view in finished_fleet.client.releases()] == [held]
    assert [path.name for path in (finished_fleet.data / "releases").iterdir()] == [held.digest]


def test_watch_says_with_its_exit_code_that_a_rollout_paused(
    serve: Serve, simulation: Simulate, make_bundle: MakeBundle
) -> None:
    fleet = serve()
    simulation(fleet, count=2, fail_rate=1.0)
    name = fleet.roll_out(make_bundle())
    done = edgepack(fleet, "rollout", "watch", name)
    assert done.returncode == 1
    assert "PAUSED wave 1/2" in done.stdout.splitlines()[-1]
    assert edgepack(fleet, "rollout", "rollback", name).stdout == f"done: {name} ends\n"
    assert "ABORTED" in edgepack(fleet, "rollout", "status", name).stdout


def test_devices_are_labelled_selected_shown_moved_and_removed(
    finished_fleet: Any, make_bundle: MakeBundle
) -> None:
    fleet = finished_fleet
    done = edgepack(fleet, "fleet", "devices", "label", "sim-1", "site=berlin", "floor=2")
    assert done.stdout == "sim-1: floor=2 site=berlin\n"
    where = ("--where", "site=berlin and not floor=3")
    assert "sim-1" in edgepack(fleet, "fleet", "devices", *where).stdout
    start = ("rollout", "start", str(make_bundle("2.0.0", 2)), *where, "--soak", "0.2")
    assert edgepack(fleet, *start).returncode == 0
    fleet.wait_for("r2", "FINISHED")
    shown = edgepack(fleet, "fleet", "devices", "show", "sim-1").stdout
    for text in ("floor=2 site=berlin", "digits 2.0.0 (", "r2", "COMMITTED", "hardware"):
        assert text in shown
    done = edgepack(fleet, "fleet", "devices", "move", "sim-1", "--group", "doors")
    assert done.stdout == "1 device in group doors\n"
    assert edgepack(fleet, "fleet", "groups").stdout.split() == [
        *("group", "devices", "online"),
        *("doors", "1", "1"),
    ]
    done = edgepack(fleet, "fleet", "devices", "--where", "site=berlin and (")
    assert done.stderr.splitlines() == [
        "error: the expression makes no sense at its end: a label or a fact is expected there",
        "  found in: --where site=berlin and (",
        "  try: --where 'soc=QCS6490 and site=berlin'",
    ]
    done = edgepack(fleet, "fleet", "devices", "remove", "sim-1")
    assert done.stdout.startswith("sim-1 is removed\n")
    assert "0 devices, 0 online" in edgepack(fleet, "fleet", "devices").stdout


def test_a_release_that_nothing_needs_is_deleted_with_its_files(
    finished_fleet: Any, make_bundle: MakeBundle
) -> None:
    fleet = finished_fleet
    used = fleet.client.releases()[0].bundle
    unused = fleet.client.publish(make_bundle("0.9.0", 0)).bundle
    done = edgepack(fleet, "fleet", "releases", "remove", "digits@0.9.0")
    assert done.stdout == f"digits 0.9.0 ({unused.digest[:12]}) is deleted\n"
    assert [view.bundle for view in fleet.client.releases()] == [used]
    assert [path.name for path in (fleet.data / "releases").iterdir()] == [used.digest]
    done = edgepack(fleet, "fleet", "releases", "remove", "digits@1.0.0")
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: digits 1.0.0 ({used.digest[:12]}) is in use\n")


def test_a_release_is_taken_back_on_the_command_line(
    finished_fleet: Any, make_bundle: MakeBundle
) -> None:
    finished_fleet.wait_for(finished_fleet.roll_out(make_bundle("2.0.0", 2)), "FINISHED")
    words = ("rollout", "rollback", "digits@2.0.0", "--soak", "0.2")
    lines = edgepack(finished_fleet, *words, "--dry-run").stdout.splitlines()
    assert lines[0].endswith(") is taken back")
    assert lines[1].split(maxsplit=3)[:3] == ["goes", "back", "1"]
    assert lines[1].rstrip().endswith("), 1 wave: sim-1")
    ahead = json.loads(edgepack(finished_fleet, *words, "--dry-run", "--json").stdout)
    assert ahead["parts"][0]["to"]["version"] == "1.0.0"
    done = edgepack(finished_fleet, *words)
    assert done.stdout.splitlines() == [
        "r3: digits 1.0.0 goes to 1 device in 1 wave",
        "edgepack rollout watch r3",
    ]
    assert edgepack(finished_fleet, "rollout", "watch", "r3").returncode == 0
    status = edgepack(finished_fleet, "rollout", "status", "r3").stdout
    assert "rolls digits 2.0.0 back; 1 committed" in status
    assert edgepack(finished_fleet, "withdraw", "digits@2.0.0").returncode == 0
    ahead = edgepack(finished_fleet, "rollout", "rollback", "digits@1.0.0", "--dry-run")
    said = " ".join(ahead.stdout.split())
    assert "stays 1 digits 2.0.0 (" in said
    assert "), which it ran before, was withdrawn: sim-1" in said
    refused = edgepack(finished_fleet, "rollout", "rollback", "digits@1.0.0")
    assert refused.returncode == 1
    assert refused.stderr.startswith("error: no device can go back from digits 1.0.0 (")


def test_simulate_runs_for_a_while_and_ends_by_itself(serve: Serve) -> None:
    fleet = serve()
    done = edgepack(fleet, "simulate", "--devices", "2", "--for", "1", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"IDLE": 2}
    assert fleet.info().devices == 2
    fleet.wait_until(lambda: fleet.info().online == 0, "no simulated device stays online")


def test_enrolment_writes_settings_that_the_agent_reads(serve: Serve, tmp_path: Path) -> None:
    fleet = serve()
    folder = tmp_path / "cam-7"
    done = edgepack(fleet, "fleet", "enroll", "cam-7", "--group", "cameras", "-o", str(folder))
    assert done.stdout.strip() == f"cam-7 is enrolled in group cameras: {folder / 'agent.toml'}"
    config = read_config(folder / "agent.toml")
    assert config.device == "cam-7"
    assert config.broker is not None
    assert config.broker.url == fleet.info().broker
    assert [Path(key).exists() for key in config.trust.keys] == [True]
    done = edgepack(fleet, "fleet", "enroll", "cam-7", "--group", "cameras", "-o", str(folder))
    assert done.returncode == 1
    assert "this folder holds a device's settings already" in done.stderr


def test_enrolment_rejects_an_id_that_differs_in_case_only_and_one_that_is_too_long(
    tls_fleet: Any, tmp_path: Path
) -> None:
    def enroll(name: str, *words: str) -> Any:
        where = ("-o", str(tmp_path / f"folder-{name[:9]}"))
        return edgepack(tls_fleet, "fleet", "enroll", name, "--group", "g", *where, *words)

    assert enroll("cam-5").returncode == 0
    for words in ((), ("--replace",)):
        done = enroll("CAM-5", *words)
        assert done.returncode == 1
        assert "cam-5 is enrolled already" in done.stderr
        assert "upper and lower case" in done.stderr
        assert not (tmp_path / "folder-CAM-5").exists()
    for name in ("x" * 65, "x" * 200):
        done = enroll(name)
        assert done.returncode == 1
        assert "Traceback" not in done.stderr
        assert "1 to 64" in done.stderr
    assert enroll("x" * 64).returncode == 0
    shown = json.loads(edgepack(tls_fleet, "fleet", "devices", "--json").stdout)
    assert {one["device"] for one in shown} == {"cam-5", "x" * 64}


def test_certificates_carry_a_whole_rollout(
    tls_fleet: Any, simulation: Simulate, make_bundle: MakeBundle
) -> None:
    simulation(tls_fleet, count=3)
    name = tls_fleet.roll_out(make_bundle())
    assert tls_fleet.wait_for(name, "FINISHED").counts == {"COMMITTED": 3}


def test_a_device_can_neither_read_nor_write_what_is_another_devices(
    tls_fleet: Any, tmp_path: Path
) -> None:
    configs = {}
    for name in ("cam-1", "cam-2"):
        folder = tmp_path / name
        done = edgepack(tls_fleet, "fleet", "enroll", name, "--group", "g", "-o", str(folder))
        assert done.returncode == 0, done.stderr
        assert stat.S_IMODE((folder / "device.key").stat().st_mode) == 0o600
        configs[name] = read_config(folder / "agent.toml")
    heard: list[str] = []
    one = _connect(configs["cam-1"], heard)
    for topic in (topics.desired("default", "cam-2"), "ep/1/default/d/+/up/+", "ep/#", "#"):
        one.subscribe(topic, qos=1)
    own = topics.desired("default", "cam-1")
    one.subscribe(own, qos=1)
    two = _connect(configs["cam-2"], [])
    report = b'{"v":1,"online":true,"at":1}'
    # cam-2 tries to speak as cam-1 and as the controller, then says something of its own. Neither
    # is signed, so that each message that comes through is counted.
    two.publish(topics.up("default", "cam-1", "reported"), report, qos=1).wait_for_publish(5)
    two.publish(own, b"{}", qos=1).wait_for_publish(5)
    two.publish(topics.up("default", "cam-2", "reported"), report, qos=1).wait_for_publish(5)
    tls_fleet.wait_until(lambda: tls_fleet.info().dropped == {"cam-2": 1}, "cam-2 is heard")
    public = topics.metadata("default", "")
    assert [topic for topic in heard if not topic.startswith(public)] == []
    for client in (one, two):
        client.disconnect()
        client.loop_stop()


def test_without_a_certificate_of_the_fleet_nobody_gets_in(tls_fleet: Any, tmp_path: Path) -> None:
    ca_file = tls_fleet.data / "pki" / "ca.crt"
    access = BrokerAccess(url=tls_fleet.info().broker, ca_file=ca_file)
    client = open_client(access, "nobody")
    connected = threading.Event()
    client.on_connect = lambda *_: connected.set()
    try:
        client.connect_somewhere()
        client.loop_start()
        assert not connected.wait(2)
    finally:
        client.loop_stop()


def _connect(config: AgentConfig, heard: list[str]) -> mqtt.Client:
    assert config.broker is not None
    access = BrokerAccess(
        url=config.broker.url,
        ca_file=Path(config.broker.ca_file),
        cert_file=Path(config.broker.cert_file),
        key_file=Path(config.broker.key_file),
    )
    client = open_client(access, config.device)
    connected = threading.Event()
    client.on_connect = lambda *_: connected.set()
    client.on_message = lambda _c, _u, message: heard.append(message.topic)
    client.connect_somewhere()
    client.loop_start()
    assert connected.wait(400)
    return client


def test_a_device_that_decided_is_free_for_the_next_release_while_a_silent_one_holds_up_the_first(
    serve: Serve, simulation: Simulate, make_bundle: MakeBundle, tmp_path: Path
) -> None:
    fleet = serve()
    simulation(fleet, count=2)
    fleet.client.enroll("sim-9", group="simulated", folder=tmp_path / "sim-9")  # never connects
    plan = ("--soak", "0.2", "--waves", "100%", "--yes")
    both = ("--device", "sim-1", "--device", "sim-2")

    def start(version: str, release: int, *options: str) -> subprocess.CompletedProcess[str]:
        bundle = str(make_bundle(version, release))
        return edgepack(fleet, "rollout", "start", bundle, *options, *plan)

    assert start("1.0.0", 1, "--group", "simulated").returncode == 0
    fleet.wait_until(
        lambda: fleet.rollout("r1").counts == {"COMMITTED": 2, "OFFERED": 1}, "two committed"
    )
    assert start("2.0.0", 2, *both, "--supersede").returncode == 0
    assert fleet.wait_for("r2", "FINISHED").counts == {"COMMITTED": 2}
    assert fleet.rollout("r1").state == "RUNNING"
    third = start("3.0.0", 3, *both)
    assert third.returncode == 0, third.stderr
    assert fleet.wait_for("r3", "FINISHED").counts == {"COMMITTED": 2}
    waits = start("4.0.0", 4, "--device", "sim-9")
    assert waits.returncode == 1
    assert "in rollout r1, which is RUNNING" in waits.stderr
    # A rollback asks the same question.
    back = edgepack(fleet, "rollout", "rollback", "r3", "--waves", "100%", "--yes")
    assert back.returncode == 0, back.stderr
    assert fleet.wait_for("r4", "FINISHED").counts == {"COMMITTED": 2}

"""Wrong input to a fleet, on the command line and on the wire: each has its own answer."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edgepack.bundle.keys import generate_key, write_key_pair
from edgepack.errors import FleetError
from edgepack.fleet.documents.devices import EnrollRequest
from edgepack.fleet.documents.fleet import EventView, FleetInfo
from edgepack.wire import topics
from tests.integration.fleet.conftest import FleetProcess, MakeBundle, Mosquitto, Serve
from tests.simulators import warm_programs
from tests.simulators.ports import free_port
from tests.simulators.signing import Speaker

REPORT = b'{"v":1,"online":true,"at":1}'


def edgepack(
    *arguments: str, umask: int = -1, cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    return warm_programs.run(
        [sys.executable, "-m", "edgepack.cli", *arguments],
        umask=umask,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=400,
        env={**os.environ, "NO_COLOR": "1", **environment},
        check=False,
    )


@pytest.mark.parametrize("kind", topics.UP_KINDS)
def test_malformed_messages_on_every_topic_are_counted_and_the_fleet_serves_on(
    serve: Serve, tmp_path: Path, kind: topics.UpKind
) -> None:
    fleet = serve()
    fleet.client.enroll("cam-1", group="g", folder=tmp_path / "cam-1")
    noise = b"\xff" + os.urandom(100_000)  # What begins with a brace is taken as a last will.
    payloads = [b"", b"\xff", b"[" * 50_000, b"x" * 100, noise, b"\n{}"]
    with Speaker(tmp_path / "cam-1") as device:
        for payload in payloads:
            device.publish(kind, payload)
        device.client.publish("ep/1/default/d/cam-1/up/nothing", b"{}", qos=1)
        device.greet().say("reported", REPORT)
        fleet.wait_until(lambda: fleet.info().online == 1, "it still takes a report")
        fleet.wait_until(
            lambda: fleet.info().counters.get("malformed", 0) >= len(payloads),
            "all are counted",
        )
        info = fleet.info()
    assert (info.counters["malformed"], info.counters["unknown_topic"]) == (len(payloads), 1)
    assert info.dropped == {"cam-1": len(payloads)}
    assert fleet.client.device("cam-1").dropped == {f"malformed {kind}": len(payloads)}


def test_a_message_beyond_all_bounds_never_reaches_the_controller(
    serve: Serve, mosquitto: Mosquitto, tmp_path: Path
) -> None:
    fleet = serve("--broker", mosquitto.url)  # which itself lets through what it is given
    fleet.client.enroll("cam-1", group="g", folder=tmp_path / "cam-1")
    with Speaker(tmp_path / "cam-1") as device:
        device.publish("reported", bytes(20_000_000))
        device.greet().say("reported", REPORT)
        fleet.wait_until(lambda: fleet.info().online == 1, "it takes a report")
        counters = fleet.info().counters
    assert counters.pop("greeted") >= 1
    assert counters == {"reported": 1}


def test_a_wrong_token_and_no_token_are_refused(serve: Serve, tmp_path: Path) -> None:
    fleet = serve()
    done = edgepack("fleet", "devices", "--url", fleet.url, EDGEPACK_FLEET_TOKEN="wrong")
    assert done.returncode == 1
    assert "the fleet does not know this token" in done.stderr
    assert "EDGEPACK_FLEET_TOKEN" in done.stderr
    assert f"found in: {fleet.url}" in done.stderr, "another fleet may serve at the default"
    done = edgepack("fleet", "devices", "--url", fleet.url, "--data", str(tmp_path))
    assert "there is no token for the fleet" in done.stderr
    token = (fleet.data / "token").read_text()
    assert (fleet.data / "token").stat().st_mode & 0o777 == 0o600
    done = edgepack("fleet", "devices", "--url", fleet.url, "--json", EDGEPACK_FLEET_TOKEN=token)
    assert json.loads(done.stdout) == []


@pytest.mark.parametrize("url", ["http://127.0.0.1:80,", "http://[::1", "mqtt://here", "here"])
def test_text_that_is_no_url_of_a_fleet_is_named(url: str) -> None:
    done = edgepack("rollout", "list", "--url", url, EDGEPACK_FLEET_TOKEN="x")
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: '{url}' is not a URL of a fleet")


def test_a_fleet_that_does_not_run_says_what_to_start(tmp_path: Path) -> None:
    done = edgepack("rollout", "list", "--url", "http://127.0.0.1:9", EDGEPACK_FLEET_TOKEN="x")
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "error: no fleet answers: Connection refused",
        "  found in: http://127.0.0.1:9",
        "  try: edgepack fleet serve, or set EDGEPACK_FLEET_URL to where one runs",
    ]


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("mqtt://127.0.0.1:9", "cannot reach the broker: Connection refused"),
        ("mqtt://no-such-host.invalid", "cannot reach the broker"),
        ("http://127.0.0.1", "is not a broker URL"),
        ("mqtt://127.0.0.1:port", "is not a broker URL"),
    ],
)
def test_a_broker_that_cannot_be_reached_is_a_clear_error(
    tmp_path: Path, url: str, problem: str
) -> None:
    done = edgepack("fleet", "serve", "--data", str(tmp_path / "f"), "--broker", url, "--port", "0")
    assert done.returncode == 1
    assert problem in done.stderr
    assert "Traceback" not in done.stderr


def test_wrong_credentials_at_the_broker_are_a_clear_error(tmp_path: Path) -> None:
    broker = Mosquitto(tmp_path, "allow_anonymous false").start()
    try:
        done = edgepack(
            *("fleet", "serve", "--data", str(tmp_path / "f"), "--port", "0"),
            *("--broker", broker.url, "--broker-user", "nobody"),
        )
    finally:
        broker.stop()
    assert done.returncode == 1
    assert "the broker refused the controller: Not authorized" in done.stderr
    assert "--broker-password-file" in done.stderr


def test_a_second_controller_on_the_same_folder_and_a_taken_port_are_refused(
    serve: Serve, tmp_path: Path
) -> None:
    fleet = serve()
    done = edgepack("fleet", "serve", "--data", str(fleet.data), "--port", "0")
    assert "another 'edgepack fleet serve' works on this folder" in done.stderr
    port = fleet.info().broker.rsplit(":", 1)[1]
    arguments = ("fleet", "serve", "--data", str(tmp_path / "other"))
    done = edgepack(*arguments, "--port", "0", "--broker-port", port)
    assert "the embedded broker cannot start" in done.stderr
    done = edgepack(*arguments, "--port", str(fleet.port), "--broker-port", str(free_port()))
    assert "the API cannot listen: Address already in use" in done.stderr


def test_bundles_that_cannot_be_trusted_are_refused_and_leave_nothing(
    serve: Serve, make_bundle: MakeBundle, tmp_path: Path
) -> None:
    fleet = serve()
    archive = make_bundle()
    content = archive.read_bytes()
    middle = len(content) // 2
    bad = {
        "truncated": content[:middle],
        "tampered": content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :],
        "no archive": b"hello",
        "empty": b"",
    }
    for name, damaged in bad.items():
        path = tmp_path / "bad.edgepack"
        path.write_bytes(damaged)
        with pytest.raises(FleetError) as refusal:
            fleet.client.publish(path)
        assert refusal.value.problem, name
    assert [path for path in (fleet.data / "incoming").rglob("*") if path.is_file()] == []
    assert list((fleet.data / "releases").iterdir()) == []
    done = edgepack("rollout", "start", "none.edgepack", "--all", "--data", str(fleet.data))
    assert "there is no such bundle" in done.stderr


def test_a_bundle_by_a_key_that_is_not_trusted_is_refused(
    make_bundle: MakeBundle, tmp_path: Path
) -> None:
    write_key_pair(generate_key(), tmp_path / "other")
    arguments = ["--trust", str(tmp_path / "other.pub"), "--broker-port", str(free_port())]
    fleet = FleetProcess(tmp_path / "fleet", *arguments).start()
    try:
        with pytest.raises(FleetError, match="key"):
            fleet.client.publish(make_bundle())
    finally:
        assert fleet.stop() == 0


def test_impossible_rollouts_are_refused_by_the_command_line(
    serve: Serve, make_bundle: MakeBundle
) -> None:
    fleet = serve()
    archive = str(make_bundle())
    common = ("rollout", "start", archive, "--data", str(fleet.data), "--url", fleet.url)
    assert "no device is enrolled" in edgepack(*common, "--all").stderr
    done = edgepack(*common)
    assert done.returncode == 2
    assert "name the devices: one of --group, --where, --device, --all" in done.stderr
    assert "waves must grow" in edgepack(*common, "--all", "--waves", "9%,2%,100%").stderr
    assert "is not a share" in edgepack(*common, "--all", "--max-failures", "many").stderr
    done = edgepack("rollout", "status", "r9", "--data", str(fleet.data), "--url", fleet.url)
    assert "there is no rollout r9" in done.stderr


def test_malformed_requests_are_answered_and_unknown_paths_too(serve: Serve) -> None:
    fleet = serve()
    with pytest.raises(FleetError, match="malformed request"):
        fleet.connection.post("/v1/rollouts", FleetInfo)
    with pytest.raises(FleetError, match="unknown"):
        fleet.connection.post("/v1/rollouts", FleetInfo, EnrollRequest(device="a", group="b"))
    with pytest.raises(FleetError, match="GET /v1/nothing: Not Found"):
        fleet.connection.get("/v1/nothing", FleetInfo)
    with pytest.raises(FleetError, match="after is not a number"):
        fleet.connection.get("/v1/events", tuple[EventView, ...], after="x")
    assert fleet.client.devices() == ()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_fleet_cleanly(serve: Serve, number: signal.Signals) -> None:
    fleet = serve()
    assert fleet.stop(number) == 0
    with pytest.raises(FleetError, match="no fleet answers"):
        fleet.info()


LONG = "x" * 65
HUGE = "1" + "0" * 30


def is_said_in_three_lines(done: subprocess.CompletedProcess[str], problem: str) -> bool:
    lines = done.stderr.splitlines()
    return done.returncode == 1 and len(lines) <= 3 and problem in lines[0]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("fleet", "enroll", LONG, "--group", "g", "-o", "x"), "must be 1 to 64"),
        (("fleet", "enroll", "cam-2", "--group", LONG, "-o", "x"), "must be 1 to 64"),
        (("fleet", "devices", "move", "cam-1", "--group", LONG), "must be 1 to 64"),
        (("fleet", "devices", "show", LONG), "not enrolled"),
        (("fleet", "devices", "label", "cam-1", f"{LONG}=a"), "is not a key of a label"),
        (("fleet", "devices", "label", "cam-1", f"a={LONG}"), "a label has at most 64"),
        (("simulate", "--prefix", LONG, "--for", "0.1"), "must be 1 to 64"),
        (("simulate", "--group", LONG, "--for", "0.1"), "must be 1 to 64"),
        (("rollout", "rollback", "r1", "--waves", HUGE), "is neither a number of devices"),
        (("rollout", "rollback", "r1", "--waves", "9" * 5000), "is neither a number of devices"),
        (("rollout", "rollback", "r1", "--waves", "1," * 5000), "a rollout has at most 100 waves"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, tuple) else "",
)
def test_names_and_numbers_beyond_all_bounds_are_errors_of_three_lines(
    one_fleet: Any, tmp_path: Path, words: tuple[str, ...], problem: str
) -> None:
    place = ("--data", str(one_fleet.data), "--url", one_fleet.url)
    done = edgepack(*words, *place, cwd=tmp_path)
    assert is_said_in_three_lines(done, problem), done.stderr
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("option", "bound"),
    [("--min-sample", "1000000"), ("--soak", "2592000"), ("--deadline", "3162")],
)
def test_a_setting_beyond_its_bounds_is_a_usage_error_that_names_option_and_bound(
    one_fleet: Any, tmp_path: Path, option: str, bound: str
) -> None:
    place = ("--data", str(one_fleet.data), "--url", one_fleet.url)
    done = edgepack("rollout", "rollback", "r1", option, HUGE, *place, cwd=tmp_path)
    assert done.returncode == 2
    assert option in done.stderr
    assert bound in done.stderr


@pytest.fixture(scope="module")
def one_fleet(tmp_path_factory: pytest.TempPathFactory, key_prefix: Path) -> Iterator[FleetProcess]:
    """Start a fleet with a single device, for read-only requests."""
    trust = ("--trust", str(key_prefix.with_suffix(".pub")))
    folder = tmp_path_factory.mktemp("one")
    fleet = FleetProcess(folder / "fleet", *trust, "--broker-port", str(free_port())).start()
    fleet.client.enroll("cam-1", group="g", folder=folder / "cam-1")
    yield fleet
    fleet.stop()


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("broker-config", "--host", "h", "--tenant", LONG, "-o", "x"), "must be 1 to 64"),
        (("broker-config", "--host", LONG, "-o", "x"), "is not a name or address of a host"),
        (("broker-config", "--host", "h" * 300, "-o", "x"), "is not a name or address of a host"),
        (("broker-config", "--host", "", "-o", "x"), "is not a name or address of a host"),
        (("serve", "--tenant", LONG), "must be 1 to 64"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, tuple) else "",
)
def test_names_that_no_broker_takes_are_errors_of_three_lines(
    tmp_path: Path, words: tuple[str, ...], problem: str
) -> None:
    done = edgepack("fleet", *words, "--data", str(tmp_path / "fleet"), cwd=tmp_path)
    assert is_said_in_three_lines(done, problem), done.stderr
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("words", [("serve", "--port", "65536"), ("serve", "--broker-port", "-1")])
def test_a_port_that_is_none_is_wrong_usage(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = edgepack("fleet", *words, "--data", str(tmp_path / "fleet"))
    assert done.returncode == 2
    assert "is not in the range 0<=x<=65535" in done.stderr


def test_a_narrow_umask_takes_nothing_from_a_fleet(tmp_path: Path) -> None:
    data, broker = tmp_path / "fleet", tmp_path / "broker"
    words = ("fleet", "broker-config", "--host", "localhost", "-o", str(broker))
    for _ in range(2):
        done = edgepack(*words, "--data", str(data), umask=0o077)
        assert done.returncode == 0, done.stderr
    modes = {path.name: path.stat().st_mode & 0o777 for path in broker.iterdir()}
    assert modes["server.key"] == modes["acl"] == 0o600
    assert modes["mosquitto.conf"] == 0o644


def test_a_folder_that_cannot_be_used_is_an_error_of_three_lines(tmp_path: Path) -> None:
    data = tmp_path / "fleet"
    data.mkdir()
    (data / "pki").write_text("somebody put a file here")
    words = ("fleet", "broker-config", "--host", "h", "-o", str(tmp_path / "x"))
    done = edgepack(*words, "--data", str(data))
    assert is_said_in_three_lines(done, "File exists"), done.stderr
    assert f"found in: {data / 'pki'}" in done.stderr

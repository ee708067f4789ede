"""Shell completion of names from a running fleet, by click's own protocol with bash."""

import os
import shlex
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.shell_completion import BashComplete

from edgepack.cli import cli
from edgepack.fleet.documents.rollouts import RolloutSettings, Selector
from tests.integration.fleet.conftest import FleetProcess, MakeBundle, Serve
from tests.simulators.ports import free_port

COMMAND = str(Path(sys.executable).with_name("edgepack"))


def complete(line: str, **environment: str) -> list[str]:
    """Return the words that bash would offer for the last word of a line."""
    words = shlex.split(line) + ([""] if line.endswith(" ") else [])
    given = {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    done = subprocess.run(
        [COMMAND],
        env={**os.environ, **environment, **given, "_EDGEPACK_COMPLETE": "bash_complete"},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.stderr == ""
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


def offer(line: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the same within this process, which is faster."""
    words = shlex.split(line) + ([""] if line.endswith(" ") else [])
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    said = BashComplete(cli, {}, "edgepack", "_EDGEPACK_COMPLETE").complete()
    return [line.partition(",")[2] for line in said.splitlines() if line]


@pytest.fixture
def fleet(serve: Serve, make_bundle: MakeBundle, tmp_path: Path) -> FleetProcess:
    running = serve()
    for device, group in (("cam-1", "cameras"), ("cam-2", "cameras"), ("gate-1", "gates")):
        running.client.enroll(device, group=group, folder=tmp_path / device)
    running.client.publish(make_bundle("1.2.0"))
    return running


def test_names_of_each_kind_are_completed(
    fleet: FleetProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = {"EDGEPACK_FLEET_URL": fleet.url, "EDGEPACK_FLEET_DATA": str(fleet.data)}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    fleet.client.make_token("alice", role="viewer")
    fleet.client.add_webhook("chat", "http://127.0.0.1:9/", is_unsafe=True)
    (release,) = fleet.client.releases()
    cameras = Selector(kind="group", group="cameras")
    fleet.client.start_rollout(release, cameras, RolloutSettings())
    for line, wanted in (
        ("edgepack fleet devices show cam", ["cam-1", "cam-2"]),
        ("edgepack fleet devices show cam-1", ["cam-1"]),
        ("edgepack fleet devices show cam-2", ["cam-2"]),
        ("edgepack fleet devices remove cam-1 ", ["cam-1", "cam-2", "gate-1"]),
        ("edgepack fleet devices --group ga", ["gates"]),
        ("edgepack rollout pause ", ["r1"]),
        ("edgepack rollout rollback ", ["r1", "digits@1.2.0"]),
        ("edgepack fleet releases remove dig", ["digits@1.2.0"]),
        ("edgepack fleet feedback ", ["digits"]),
        ("edgepack fleet tokens revoke ", ["alice"]),
        ("edgepack fleet webhooks test ", ["chat"]),
        ("edgepack rollout start x.edgepack --device g", ["gate-1"]),
        ("edgepack fleet devices show dog", []),
    ):
        assert offer(line, monkeypatch) == wanted, line
    offered = offer("edgepack fleet devices show cam", monkeypatch)
    assert offered == complete("edgepack fleet devices show cam", **place), "as a process too"
    named = f"edgepack fleet devices show --url {fleet.url} --data {fleet.data} gate"
    assert complete(named) == ["gate-1"]


def test_a_fleet_that_is_away_or_hangs_is_just_nothing_to_complete(tmp_path: Path) -> None:
    token = {"EDGEPACK_FLEET_TOKEN": "none"}
    away = f"http://127.0.0.1:{free_port()}"
    assert complete("edgepack fleet devices show c", EDGEPACK_FLEET_URL=away, **token) == []
    nowhere = {"EDGEPACK_FLEET_DATA": str(tmp_path / "no"), "EDGEPACK_FLEET_URL": "nonsense"}
    assert complete("edgepack fleet devices show c", **nowhere) == []
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        began = time.monotonic()
        assert complete("edgepack fleet devices show c", EDGEPACK_FLEET_URL=url, **token) == []
        assert time.monotonic() - began < 60, "it does not wait as long as a command does"


def test_bash_takes_the_script_that_sets_it_up() -> None:
    script = subprocess.run(
        [COMMAND],
        env={**os.environ, "_EDGEPACK_COMPLETE": "bash_source"},
        capture_output=True,
        text=True,
        timeout=400,
        check=True,
    ).stdout
    asked = f"{script}\ncomplete -p edgepack"
    done = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, check=False)
    assert "_edgepack_completion edgepack" in done.stdout, done.stderr

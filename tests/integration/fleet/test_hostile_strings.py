"""Hostile text from devices and users in names and reasons: no command lets the text steer a
terminal.
"""

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from edgepack.fleet.commands.fleet import fleet as fleet_group
from edgepack.fleet.commands.rollout import rollout as rollout_group
from edgepack.fleet.documents.rollouts import RolloutSettings, Selector
from edgepack.wire import topics
from edgepack.wire.histogram import LatencyRecorder
from edgepack.wire.messages import Message
from edgepack.wire.orders import BundleRef
from edgepack.wire.reports import Active, Choice, Reported, ReportedModel
from edgepack.wire.telemetry import Event, Telemetry
from tests.integration.fleet.conftest import MakeBundle, Serve
from tests.simulators import warm_programs
from tests.simulators.signing import Speaker
from tests.simulators.world import make_facts

STEERING = ("\x1b]0;", "\x1b[2J", "\x9b", "\u202e", "\x07", "\x08")
"""Titles, clearing, colours by one byte, the direction of writing, the bell, a step back."""
HOSTILE = "".join(STEERING) + "root!"
"""Of which `root!` is seen where it is shown."""

SHOWS = "root!"
COMMANDS: dict[str, list[tuple[str, ...]]] = {
    "fleet info": [()],
    "fleet latency": [(), (HOSTILE,), ("--where", f"variant={HOSTILE}"), ("--by", HOSTILE)],
    "fleet groups": [()],
    "fleet init": [("--keys", "{tmp}/no/" + HOSTILE), ("--root-key", HOSTILE)],
    "fleet keys": [()],
    "fleet keys list": [(), ("--keys", "{tmp}/no/" + HOSTILE)],
    "fleet keys publisher": [(HOSTILE, "--models", HOSTILE), ("p", "--models", HOSTILE)],
    "fleet keys renew": [(HOSTILE,)],
    "fleet keys renew-authority": [],
    "fleet keys revoke": [(HOSTILE, HOSTILE), ("root", HOSTILE)],
    "fleet keys rotate": [(HOSTILE,), ("root", "--key", f"pkcs11:object={HOSTILE}")],
    "fleet keys threshold": [(HOSTILE, "1")],
    "fleet login": [()],
    "fleet tokens": [()],
    "fleet tokens make": [("alice", "--role", "viewer"), (HOSTILE, "--role", "viewer")],
    "fleet tokens revoke": [("alice",), (HOSTILE,)],
    "fleet webhooks": [()],
    "fleet webhooks add": [(HOSTILE, "--to", "https://x.example"), ("chat", "--to", HOSTILE)],
    "fleet webhooks remove": [(HOSTILE,)],
    "fleet webhooks test": [(HOSTILE,)],
    "fleet audit": [(), ("--rollout", HOSTILE), ("--limit", "1000")],
    "fleet events": [("--limit", "1000")],
    "fleet feedback": [("digits",), (HOSTILE,), ("digits", "-o", "{tmp}/no/" + HOSTILE)],
    "fleet enroll": [
        (HOSTILE, "--group", "g", "-o", "{tmp}/a"),
        ("x", "--group", HOSTILE, "-o", "b"),
        ("x", "--group", "g", "--enrol-at", HOSTILE, "--package", "{tmp}/x"),
        ("y", "--group", "g", "--package", "{tmp}/no/" + HOSTILE),
        ("z", "--group", "g", "--enrol-ca", HOSTILE, "--package", "{tmp}/z"),
    ],
    "fleet revocations": [("-o", "{tmp}/no/" + HOSTILE), ("-o", "x", "--revoke", HOSTILE)],
    "fleet broker-config": [("--host", "x", "--tenant", HOSTILE, "-o", "{tmp}/c")],
    "fleet devices show": [("cam-1",), (HOSTILE,)],
    "fleet devices log": [("cam-1", "--wait", "1s"), ("cam-1", "--last"), (HOSTILE,)],
    "fleet devices move": [("cam-1", "--group", HOSTILE), (HOSTILE, "--group", "g")],
    "fleet devices label": [("cam-1", f"site={HOSTILE}"), ("cam-1", f"{HOSTILE}=berlin")],
    "fleet devices": [(), ("--where", f"site={HOSTILE}"), ("--where", HOSTILE)],
    "fleet capture": [(HOSTILE,), ("digits", "--of", HOSTILE), ("digits", "--group", HOSTILE)],
    "fleet samples": [()],
    "fleet samples pull": [
        (HOSTILE, "-o", "{tmp}/pulled"),
        ("digits", "-o", "{tmp}/no/" + HOSTILE, "--key", HOSTILE),
    ],
    "fleet samples remove": [(HOSTILE,)],
    "fleet releases": [()],
    "fleet releases prune": [("--yes",), ("--keep", "1", "--key", HOSTILE, "--yes")],
    "fleet releases remove": [("digits@1.0.0",), (HOSTILE,)],
    "rollout list": [()],
    "rollout status": [("r1",), (HOSTILE,)],
    "rollout watch": [("r1",), (HOSTILE,)],
    "rollout report": [
        ("r1", "-o", "{tmp}/r1.html"),
        (HOSTILE,),
        ("r1", "-o", "{tmp}/no/" + HOSTILE),
    ],
    "rollout start": [
        ("{bundle}", "--group", "g", "--dry-run"),
        ("{bundle}", "--group", HOSTILE),
        (HOSTILE, "--all"),
    ],
    "rollout rollback": [("r1", "--dry-run"), ("r1", "--where", f"soc={HOSTILE}"), (HOSTILE,)],
    "rollout pause": [("r1",), (HOSTILE,)],
    "rollout resume": [("r1",), (HOSTILE,)],
    "rollout approve": [("r1",), (HOSTILE,)],
    "rollout retry": [("r1",), (HOSTILE,)],
    "rollout abort": [("r1",), (HOSTILE,)],
    "simulate": [("--devices", "1", "--for", "0.1"), ("--prefix", HOSTILE, "--for", "0.1")],
    "fleet devices remove": [(HOSTILE,), ("cam-1",)],
}

LOCAL = {"fleet broker-config", "fleet init"} | {one for one in COMMANDS if "fleet keys" in one}
"""What asks no running fleet."""


def commands(group: click.Group, name: str) -> Iterator[str]:
    for child, command in group.commands.items():
        if isinstance(command, click.Group):
            yield f"{name} {child}"
            yield from commands(command, f"{name} {child}")
        else:
            yield f"{name} {child}"


def test_every_command_is_fed() -> None:
    known = {*commands(fleet_group, "fleet"), *commands(rollout_group, "rollout"), "simulate"}
    assert COMMANDS.keys() == known - {"fleet serve"}, "what serve logs is looked at below"


def hostile_report(digest: str) -> Reported:
    choice = Choice(
        wanted=HOSTILE, chosen=HOSTILE, provider=HOSTILE, because=HOSTILE, is_fallback=True
    )
    bundle = BundleRef(name=HOSTILE, version=HOSTILE, release=1, digest=HOSTILE)
    model = ReportedModel(
        state=HOSTILE,
        because=HOSTILE,
        rollout=HOSTILE,
        target=bundle,
        active=Active(bundle=bundle, choice=choice, since=1.0),
        previous=bundle,
    )
    failed = ReportedModel(state="ROLLED_BACK", because=HOSTILE, sequence=1, active=model.active)
    (facts,) = [make_facts(arch=HOSTILE)]
    changes = dict.fromkeys(("cpu_model", "os", "soc", "python", "agent_version"), HOSTILE)
    facts = type(facts)(
        **{name: getattr(facts, name) for name in facts.__struct_fields__} | changes
    )
    return Reported(
        online=True,
        at=1.0,
        boot=HOSTILE,
        facts=facts,
        models={HOSTILE: model, "digits": failed},
        warnings=(HOSTILE, HOSTILE),
    )


def said(digest: str) -> Iterator[tuple[topics.UpKind, Message]]:
    recorder = LatencyRecorder()
    recorder.record(1.0)
    yield "reported", hostile_report(digest)
    yield (
        "event",
        Event(
            at=1.0,
            kind=HOSTILE,
            model=HOSTILE,
            bundle=HOSTILE,
            from_state=HOSTILE,
            to_state=HOSTILE,
            because=HOSTILE,
            rollout=HOSTILE,
        ),
    )
    yield (
        "telemetry",
        Telemetry(
            digest=digest,
            variant=HOSTILE,
            provider=HOSTILE,
            window_start=1.0,
            window_s=1.0,
            latency=recorder.snapshot(),
        ),
    )


def speak(folder: Path, digest: str) -> None:
    """Publish all hostile texts, and an unreadable message for the log."""
    with Speaker(folder, HOSTILE) as device:
        device.greet()
        for kind, message in said(digest):
            device.say(kind, message)
        for topic in (topics.up("default", "cam-1", "need"), f"ep/1/default/d/{HOSTILE}/up/need"):
            payload = json.dumps({"v": 1, "digest": 1, HOSTILE: HOSTILE}).encode()
            device.client.publish(topic, payload, qos=1).wait_for_publish(10)


def on_a_terminal(command: list[str], environment: dict[str, str]) -> str:
    """Return the output of a command on its terminal, stdout and stderr."""
    ours, theirs = pty.openpty()
    with warm_programs.Popen(
        command, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, env=environment
    ):
        os.close(theirs)
        content = b""
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # the other side is closed
                break
            if not piece:
                break
            content += piece
    os.close(ours)
    return content.decode(errors="replace")


def check(command: str, printed: str) -> None:
    assert "Traceback" not in printed, command
    for steering in STEERING:
        assert steering not in printed, (command, steering, printed)


@pytest.mark.parametrize("way", ["terminal", "json"])
def test_no_command_lets_a_device_steer_the_terminal(
    serve: Serve, make_bundle: MakeBundle, tmp_path: Path, way: str
) -> None:
    fleet = serve()
    bundle = make_bundle()
    fleet.client.enroll("cam-1", group="g", folder=tmp_path / "cam-1")
    release = fleet.client.publish(bundle)
    settings = RolloutSettings(waves="100%", min_sample=5)
    name = fleet.client.start_rollout(release, Selector(kind="group", group="g"), settings).rollout
    fleet.wait_until(lambda: fleet.rollout(name).counts == {"OFFERED": 1}, "it is offered")
    speak(tmp_path / "cam-1", release.bundle.digest)
    fleet.wait_until(
        lambda: fleet.rollout(name).state == "PAUSED", "the device said that it failed"
    )
    fleet.wait_until(lambda: "unknown_topic" in fleet.info().counters, "all was heard")
    shown = set()
    for command, calls in COMMANDS.items():
        for call in calls:
            arguments = [word.format(tmp=tmp_path, bundle=bundle) for word in call]
            line = [sys.executable, "-m", "edgepack.cli", *command.split(), *arguments]
            line += ["--data", str(fleet.data)]
            if command not in LOCAL:
                line += ["--url", fleet.url]
            line += ["--json"] * (way == "json")
            environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "400"}
            if way == "terminal":
                printed = on_a_terminal(line, environment)
            else:
                done = warm_programs.run(
                    line, capture_output=True, text=True, check=False, env=environment, timeout=400
                )
                printed = done.stdout + done.stderr
                assert all(one.isprintable() for one in printed.split("\n")), (command, printed)
            check(command, printed)
            if SHOWS in printed:
                shown.add(command)
    expected = {"fleet devices", "fleet devices show", "fleet events", "rollout status"}
    assert expected <= shown, "what devices say is shown, harmless"
    log = (fleet.data.parent / "serve.log").read_text()
    check("fleet serve", log)
    assert SHOWS in log

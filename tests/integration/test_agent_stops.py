"""SIGTERM and newer offers reach a real agent in every state, during any background work."""

import subprocess
import sys
from pathlib import Path

import pytest

from edgepack.bundle.keys import PrivateKey
from edgepack.wire.orders import Desired, RemoveModel
from tests.integration.conftest import Keys
from tests.simulators import warm_programs
from tests.simulators.broker import Broker
from tests.simulators.bundles import make_bundle
from tests.simulators.children import has_ended
from tests.simulators.controller import Controller
from tests.simulators.device import DEVICE, Device
from tests.simulators.waiting import wait_until

HANGS = """#!{python}
import os, sys, time
if os.path.exists({go!r}):
    sys.exit(0)
if os.fork() == 0:
    os.setsid()  # It leaves its group, as a careless hook may.
time.sleep(600)
"""
REFUSES = """#!{python}
import os, sys
sys.exit(0 if os.path.exists({go!r}) else 1)
"""

HOOKS: dict[str, dict[str, str]] = {
    "OFFERED": {"offered.before": HANGS},
    "VERIFIED": {"staged.before": HANGS},
    "STAGED": {"staged.after": HANGS},
    "ACTIVATING": {"activating.before": HANGS},
    "COMMITTED": {"committed.after": HANGS},
    "ROLLING_BACK": {"activating.after": REFUSES, "rolled_back.before": HANGS},
    "REJECTED": {"offered.before": REFUSES},
    "ROLLED_BACK": {"staged.before": REFUSES},
}
"""What holds an update in a state until it is let go."""
RESTS = ("REJECTED", "ROLLED_BACK", "REMOVED", "IDLE")
STATES = (
    *("IDLE", "OFFERED", "DOWNLOADING", "VERIFIED", "STAGED", "PROBING", "ACTIVATING"),
    *("SOAKING", "COMMITTED", "ROLLING_BACK", "ROLLED_BACK", "REJECTED", "REMOVED"),
)


class Held:
    """A device with an update held in a state."""

    def __init__(self, folder: Path, broker: Broker, key: Path, state: str) -> None:
        self.go = folder / "go"
        self.state = state
        hooks = folder / "hooks"
        hooks.mkdir(parents=True)
        for stage, script in HOOKS.get(state, {}).items():
            hook = hooks / f"{stage}.d" / "10-hold"
            hook.parent.mkdir()
            hook.write_text(script.format(python=sys.executable, go=str(self.go)))
            hook.chmod(0o755)
        self.device = Device(folder / "device", broker.url, key, hooks=hooks)

    def is_there(self) -> bool:
        journal = self.device.journal()
        if "connected to" not in self.device.said():
            return False
        if (journal.state if journal else "IDLE") != self.state:
            return False
        # A hook or a probe is at work, so there are processes beside the agent.
        needs = 3 if HANGS in HOOKS.get(self.state, {}).values() else 1
        return len(self.device.processes()) >= needs + (self.state == "PROBING")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("state", STATES)
def test_sigterm_ends_the_agent_with_all_that_it_started_and_it_goes_on_later(
    tmp_path: Path,
    mosquitto_broker: Broker,
    controller: Controller,
    release_keys: Keys,
    monkeypatch: pytest.MonkeyPatch,
    state: str,
) -> None:
    if state == "PROBING":
        monkeypatch.setattr(warm_programs, "HAVE_CHILDREN", frozenset())
    held = Held(tmp_path, mosquitto_broker, release_keys[1], state)
    bundle = make_bundle(tmp_path / "one", release_keys[0])
    controller.hold(bundle)
    if state == "DOWNLOADING":
        controller.answers_only = {bundle.manifest.sha256, bundle.signature.sha256}
    device = held.device
    device.start()
    try:
        if state != "IDLE":
            controller.offer(DEVICE, bundle.desired(1, soak_s=600 if state == "SOAKING" else 0))
        if state == "REMOVED":
            controller.wait_for(lambda model: model.state == "COMMITTED")
            removal = RemoveModel(sequence=2, issued_at=0.0)
            controller.offer(DEVICE, Desired(sequence=2, models={"tiny": removal}))
        wait_until(held.is_there, state)
        # The agent holds itself to its five seconds, by the clock of its own; a machine that is too
        # busy for an orderly end within them sees the other one, which leaves no more behind.
        assert device.stop() == ("it is ended" in device.said())
        assert device.processes() == []
        assert "Traceback" not in device.said()

        held.go.touch()
        controller.answers_only = None
        if state in (*RESTS, "SOAKING"):
            controller.offer(DEVICE, make_two(tmp_path, controller, release_keys[0], 3))
        device.start()
        end = "ROLLED_BACK" if state == "ROLLING_BACK" else "COMMITTED"
        controller.wait_for(lambda model: model.state == end)
        assert device.stop() == 0
    finally:
        if device.is_running:
            device.kill()


def make_two(folder: Path, controller: Controller, key: PrivateKey, sequence: int) -> Desired:
    bundle = make_bundle(folder / "two", key, release=2)
    controller.hold(bundle)
    return bundle.desired(sequence)


@pytest.mark.parametrize("state", ["OFFERED", "STAGED", "ACTIVATING"])
def test_a_newer_offer_is_heard_while_a_hook_works_and_waits_for_its_end(
    tmp_path: Path, mosquitto_broker: Broker, controller: Controller, release_keys: Keys, state: str
) -> None:
    held = Held(tmp_path, mosquitto_broker, release_keys[1], state)
    flashes, whole = tmp_path / "flashes", tmp_path / "whole"
    (stage,) = HOOKS[state]
    hook = tmp_path / "hooks" / f"{stage}.d" / "10-hold"
    hook.write_text(
        f"#!/bin/sh\n[ $EDGEPACK_BUNDLE_RELEASE = 1 ] || exit 0\ntouch {flashes}\n"
        f"until [ -e {held.go} ]; do sleep 0.01; done\ntouch {whole}\n"
    )
    never = hook.with_name("20-never")
    never.write_text(f"#!/bin/sh\necho $EDGEPACK_BUNDLE_RELEASE >> {tmp_path}/asked\n")
    never.chmod(0o755)
    one = make_bundle(tmp_path / "one", release_keys[0])
    controller.hold(one)
    device = held.device
    device.start()
    try:
        controller.offer(DEVICE, one.desired(1))
        wait_until(flashes.exists, "the hook has begun")
        controller.offer(DEVICE, make_two(tmp_path, controller, release_keys[0], 2))
        wait_until(lambda: controller.reports[-1].sequence == 2, "the newer offer was heard")
        assert not whole.exists()
        held.go.touch()
        done = controller.wait_for(lambda model: model.state == "COMMITTED")
        assert done.active is not None
        assert done.active.bundle.release == 2
        assert whole.exists(), "the hook was ended in the middle"
        asked = (tmp_path / "asked").read_text().split()
        assert asked == ["2"], "a further hook was begun for what was given up"
        assert device.stop() == 0
    finally:
        if device.is_running:
            device.kill()


STUCK = """
import pathlib, subprocess, sys, time
from edgepack.agent.daemon.signals import end_later
from edgepack.agent.hooks.strays import adopt_strays, end_strays
adopt_strays()
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
pathlib.Path(sys.argv[1]).write_text(str(child.pid))
end_later(end_strays, 0.1)
time.sleep(600)
"""


def test_an_agent_that_does_not_end_by_itself_is_ended_with_its_children(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    ended = subprocess.run(
        [sys.executable, "-c", STUCK, note],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert ended.returncode == 1
    assert "did not end by itself within 0.1 s" in ended.stderr
    assert has_ended(int(note.read_text()))


HOLDS = """
import os, signal, threading, time
from edgepack.agent.broker.inbox import Inbox
from edgepack.agent.daemon.signals import handle_signals

class Held(Inbox):
    lock = threading.Lock()
    def wake(self):
        with self.lock:
            super().wake()

stop, inbox = threading.Event(), Held()
handle_signals(stop, threading.Event(), inbox, print)
with inbox.lock:
    os.kill(os.getpid(), signal.SIGTERM)
while not stop.is_set():
    inbox.get(600)
"""


def test_a_signal_that_comes_while_the_agent_holds_a_lock_ends_the_agent_by_itself() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", HOLDS], capture_output=True, timeout=400, check=True
    )
    assert b"it is ended" not in ended.stderr

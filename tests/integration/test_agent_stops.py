"""SIGTERM and newer offers reach a real agent in every state, whatever works beside its loop."""

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edgepack.bundle.keys import PrivateKey
from edgepack.wire.messages import Desired, RemoveModel
from tests.simulators.broker import Broker
from tests.simulators.bundles import make_bundle
from tests.simulators.controller import Controller
from tests.simulators.device import DEVICE, Device

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


def wait_until(is_so: Callable[[], object], what: str) -> None:
    until = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < until, f"waited in vain: {what}"
        time.sleep(0.01)


class Held:
    """A device whose update is held in a state."""

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


@pytest.fixture
def controller(mosquitto_broker: Broker) -> Iterator[Controller]:
    controller = Controller(mosquitto_broker.port)
    yield controller
    controller.close()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("state", STATES)
def test_sigterm_ends_the_agent_with_all_that_it_started_and_it_goes_on_later(
    tmp_path: Path,
    mosquitto_broker: Broker,
    controller: Controller,
    release_keys: tuple[PrivateKey, Path],
    state: str,
) -> None:
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
        assert device.stop() == 0
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
def test_a_newer_offer_is_heard_while_a_hook_hangs_and_ends_it(
    tmp_path: Path,
    mosquitto_broker: Broker,
    controller: Controller,
    release_keys: tuple[PrivateKey, Path],
    state: str,
) -> None:
    held = Held(tmp_path, mosquitto_broker, release_keys[1], state)
    one = make_bundle(tmp_path / "one", release_keys[0])
    controller.hold(one)
    device = held.device
    device.start()
    try:
        controller.offer(DEVICE, one.desired(1))
        wait_until(held.is_there, state)
        held.go.touch()  # The hanging hook does not look any more.
        controller.offer(DEVICE, make_two(tmp_path, controller, release_keys[0], 2))
        done = controller.wait_for(lambda model: model.state == "COMMITTED")
        assert done.active is not None
        assert done.active.bundle.release == 2
        wait_until(lambda: len(device.processes()) == 1, "only the agent is left")
        assert device.stop() == 0
    finally:
        if device.is_running:
            device.kill()

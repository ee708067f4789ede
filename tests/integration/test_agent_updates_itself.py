"""The agent updates itself: a real launcher, broker and agents, under load and under kills."""

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgepack.agent.update.lifecycle import TABLE, State
from edgepack.bundle.agent_release import AGENT_RELEASE
from edgepack.bundle.keys import PrivateKey
from edgepack.wire.orders import Desired, RunModel
from edgepack.wire.reports import ReportedModel
from tests.integration.conftest import Keys
from tests.integration.picture_builds import edgepack
from tests.simulators.broker import Broker
from tests.simulators.bundles import WIDTH, ExampleBundle, make_bundle
from tests.simulators.controller import Controller
from tests.simulators.device import DEVICE, Device
from tests.simulators.launched_agent import CRASHES, UNPROVEN, LaunchedAgent, make_agent_release
from tests.simulators.waiting import wait_until

KILLS = int(os.environ.get("EDGEPACK_AGENT_KILLS", "1"))
"""20 take some minutes."""
SEED = 20261128
STATES: tuple[State, ...] = ("REBOOTING", "INSTALLING", "PROBING", "DOWNLOADING", "CONFIRMING")
LOAD = f"""
import select, sys
import numpy as np
from edgepack.agent import open_model
x = np.ones((1, {WIDTH}), np.float32)
count = 0
with open_model("tiny", sys.argv[1], threads=1) as model:
    while not select.select([sys.stdin], [], [], 0.02)[0]:
        model.run({{"x": x}})
        count += 1
        if count == 1:
            print("begins", flush=True)
print(count)
"""


class Site:
    """A device that serves a model, with a fleet that updates its agent."""

    def __init__(
        self, folder: Path, device: Device, controller: Controller, key: PrivateKey
    ) -> None:
        self.device = device
        self._folder, self._controller, self._key = folder, controller, key
        self._sequence = 0
        self.offer(make_bundle(folder / "tiny", key))
        self.agent = LaunchedAgent(folder, device.config, device.log)
        self.wait("COMMITTED", model="tiny")
        self._load = subprocess.Popen(
            [sys.executable, "-c", LOAD, str(device.state_dir)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._load.stdout is not None
        assert self._load.stdout.readline() == b"begins\n"

    def offer(self, bundle: ExampleBundle) -> None:
        self._sequence += 1
        self._controller.hold(bundle)
        order = bundle.order(self._sequence, soak_s=0.2)
        self._controller.offer(
            DEVICE, Desired(sequence=self._sequence, models={bundle.ref.name: order})
        )

    def offer_agent(self, release: int, site_code: str = "") -> None:
        folder = self._folder / f"agent-{release}"
        self.offer(make_agent_release(folder, self._key, release, site_code))

    def install_agent(self, release: int) -> None:
        """Install a release by the command, beside the running agent."""
        bundle = make_agent_release(self._folder / f"agent-{release}", self._key, release)
        words = ("install", bundle.folder, "--config", self.device.config, "--soak", "0.2")
        edgepack(*words, module="edgepack.agent.cli")

    def wait(self, *states: str, model: str = AGENT_RELEASE) -> ReportedModel:
        """Wait until the latest order has ended in one of the states."""
        return self._controller.wait_for(
            lambda it: it.sequence == self._sequence and it.state in states, model=model
        )

    def has_reached(self, release: int, state: State) -> bool:
        """Return True if the update to a release is in a state, or beyond."""
        journal = self.device.journal(AGENT_RELEASE)
        offer = journal.offer if journal else None
        if journal is None or not isinstance(offer, RunModel) or offer.bundle.release != release:
            return False
        order = list(TABLE)
        return order.index(journal.state) >= order.index(state)

    @property
    def version(self) -> str:
        """Reported version of the running agent."""
        last = self._controller.last()
        return last.facts.agent_version if last is not None and last.facts else ""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings of the running agent."""
        last = self._controller.last()
        return last.warnings if last is not None else ()

    def end_load(self) -> int:
        """End the application; return its inferences, of which none failed."""
        said, _ = self._load.communicate(b"end")
        assert self._load.returncode == 0
        return int(said)


@pytest.fixture
def site(
    tmp_path: Path, mosquitto_broker: Broker, controller: Controller, release_keys: Keys
) -> Iterator[Site]:
    device = Device(tmp_path / "device", mosquitto_broker.url, release_keys[1])
    site = Site(tmp_path, device, controller, release_keys[0])
    yield site
    site.agent.stop()


def kill_at_random_moments(site: Site, first: int) -> None:
    """Kill the agent during updates: it runs, and updates."""
    rng = random.Random(SEED)
    for release in range(first, first + KILLS):
        before, struck_in = site.version, rng.choice(STATES)
        site.offer_agent(release)
        wait_until(lambda: site.has_reached(release, struck_in))  # noqa: B023
        time.sleep(rng.uniform(0, 1))
        site.agent.kill()
        said = site.wait("COMMITTED", "ROLLED_BACK")
        expected = f"{release}.0" if said.state == "COMMITTED" else before
        wait_until(lambda: site.version == expected, lambda: site.version)  # noqa: B023
        print(f"killed in {struck_in}: {said.state}, {said.because}")


def test_agent_updates_itself_under_load_and_kills_and_leaves_agents_that_fail(site: Site) -> None:
    packaged = site.version
    site.offer_agent(2)
    site.wait("COMMITTED")
    wait_until(lambda: site.version == "2.0", lambda: site.version)
    assert packaged != "2.0"
    slot = (site.agent.slots / "active").read_text()[0]

    site.offer_agent(3, UNPROVEN)
    said = site.wait("ROLLED_BACK")
    assert "this agent cannot prove itself" in said.because
    site.offer_agent(4, CRASHES)
    said = site.wait("ROLLED_BACK")
    assert "agent 2.0 runs after the restart instead of 4.0: the launcher fell back" in said.because
    assert site.version == "2.0"
    assert (site.agent.slots / "active").read_text()[0] == slot

    site.install_agent(5)
    wait_until(lambda: site.version == "5.0", lambda: site.version)

    kill_at_random_moments(site, first=6)

    # Damaged slots start the package's own agent.
    for slot in ("a", "b"):
        (site.agent.slots / slot / "version").write_text("9.0\n")
    site.agent.kill()
    wait_until(lambda: site.version == packaged, lambda: site.version)
    wait_until(lambda: "is damaged" in str(site.warnings), lambda: site.warnings)
    assert site.end_load() > 0
    assert "Traceback" not in site.device.said()

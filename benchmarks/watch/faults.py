"""Time from planted faults to the action: real builds, a real fleet, agents and applications, with
the default settings of the watch.
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from benchmarks.fleet.running import RunningFleet, wait_until
from edgepack.agent.state.holders import HolderWatch
from edgepack.agent.state.pointer import read_pointer
from edgepack.agent.update.journal import read_journal
from edgepack.bundle.archive import pack
from edgepack.bundle.keys import generate_key, load_private_key, write_key_pair
from edgepack.fleet.documents.rollouts import RolloutSettings, Selector
from tests.simulators.bundles import make_bundle
from tests.simulators.manifests import CPU
from tests.simulators.own_site import OwnSite
from tests.simulators.watched_application import DYING, FLIPPING, HANGING, Application
from tests.simulators.watched_model import FAULTS, build

INPUTS = {
    "process killed": DYING,
    "process hung": HANGING,
    "NaN in every output": FAULTS["not_finite"],
    "every inference fails": FAULTS["failed"],
    "100 times as slow": FAULTS["slow"],
    "bit flipped in memory": FLIPPING,
}
SLOW_LAYERS = 24_000
"""More than 100 times as slow as the model, also where an application sleeps between calls."""
REMOVED = "file removed"
SITES: dict[str, Callable[[OwnSite], None]] = {
    "provider uninstalled": OwnSite.uninstall_qnn,
    "driver changed and broken": OwnSite.break_qnn,
}
PAST_S = 240.0
"""Inferences before the faults: slowness is judged against the past."""
LONGEST_S = 600.0
SETTINGS = RolloutSettings(waves="100%", soak_s=5, gate_evidence="optional", deadline_s=600.0)


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """Action after a fault.

    Attributes:
        fault: The fault.
        after_s: Seconds from the fault to the action; None without an action.
        because: Reason that the device reported.
    """

    fault: str
    after_s: float | None
    because: str


class _Place(NamedTuple):
    fault: str
    folder: Path
    model: str

    @property
    def state_dir(self) -> Path:
        """Return the agent's state folder."""
        return self.folder / "state"

    def acted(self) -> str:
        """Return the reason of an action; "" before any action."""
        journal = read_journal(self.state_dir, self.model)
        if journal is None:
            return ""
        told = journal.watch.told
        return told.because if told.state == "DEGRADED" else ""


def measure_faults() -> list[Action]:
    """Plant each fault on a device of its own, and wait for the action."""
    with tempfile.TemporaryDirectory(prefix="edgepack-bench-") as name:
        folder = Path(name)
        private, trust = write_key_pair(generate_key(), folder / "release")
        applications: dict[str, Application] = {}
        try:
            with RunningFleet(folder, trust) as fleet:
                return _measure(folder, private, fleet, applications)
        finally:
            for one in applications.values():
                one.stop()


def _measure(
    folder: Path, key: Path, fleet: RunningFleet, applications: dict[str, Application]
) -> list[Action]:
    cameras = [_Place(fault, folder / f"camera-{n}", "shapes") for n, fault in enumerate(INPUTS)]
    cameras.append(_Place(REMOVED, folder / "camera-removed", "shapes"))
    npus = [_Place(fault, folder / f"npu-{n}", "tiny") for n, fault in enumerate(SITES)]
    sites = {place.fault: OwnSite(folder / f"{place.folder.name}-site") for place in npus}
    for place in (*cameras, *npus):
        is_npu = place in npus
        group = "npus" if is_npu else "cameras"
        fleet.client.enroll(place.folder.name, group=group, folder=place.folder)
        if is_npu:
            with (place.folder / "agent.toml").open("a") as settings:
                settings.write(
                    '\n[providers]\nwanted = "QNNExecutionProvider"\nallow_simulator = true\n'
                )
        python = sites[place.fault].python if is_npu else None
        fleet.run_agent(place.folder / "agent.toml", python)
    count = len(cameras) + len(npus)
    wait_until(lambda: fleet.client.info().online == count, "the agents are online")
    tiny = make_bundle(
        folder / "tiny",
        load_private_key(key),
        variants=("qnn", "cpu"),
        provider={"qnn": "QNNExecutionProvider", "cpu": CPU},
    )
    pack(tiny.folder, archive := folder / "tiny-1.1.0.edgepack")
    _roll_out(fleet, archive, "npus")
    for number in (0, 1):
        _roll_out(fleet, build(folder / "built", key, number, SLOW_LAYERS), "cameras")
        if not number:
            applications |= {place.fault: Application(place.folder) for place in cameras}
            wait_until(
                lambda: all(HolderWatch(place.state_dir).look().held for place in cameras),
                "all serve",
            )
    time.sleep(PAST_S)
    planted: dict[str, float] = {}
    for place in (*cameras, *npus):
        planted[place.fault] = time.monotonic()
        if place.fault in INPUTS:
            applications[place.fault].fault = INPUTS[place.fault]
        elif place in npus:
            SITES[place.fault](sites[place.fault])
        else:
            pointer = read_pointer(place.state_dir, "shapes")
            if pointer is not None:
                slot = place.state_dir / "slots" / pointer.digest
                next(slot.glob("model/*/*.onnx")).unlink()
    actions: dict[str, Action] = {}
    until = time.monotonic() + LONGEST_S
    while len(actions) < count and time.monotonic() < until:
        for place in (*cameras, *npus):
            if place.fault not in actions and (because := place.acted()):
                after_s = time.monotonic() - planted[place.fault]
                actions[place.fault] = Action(fault=place.fault, after_s=after_s, because=because)
        time.sleep(0.2)
    return [
        actions.get(place.fault) or Action(fault=place.fault, after_s=None, because="no action")
        for place in (*cameras, *npus)
    ]


def _roll_out(fleet: RunningFleet, archive: Path, group: str) -> None:
    selector = Selector(kind="group", group=group)
    release = fleet.client.publish(archive)
    name = fleet.client.start_rollout(release, selector, SETTINGS).rollout
    wait_until(lambda: fleet.client.rollout(name).state == "FINISHED", f"{name} is finished")

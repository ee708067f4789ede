"""`kill -9` of a real agent at random moments of its updates."""

import json
import random
import time
from collections import Counter
from pathlib import Path

import numpy as np

from edgepack.agent.runtime.opening import open_session
from edgepack.agent.state.slots import slot_folder
from edgepack.agent.update.journal import Journal
from edgepack.agent.update.lifecycle import RESTING
from edgepack.bundle.keys import load_public_key
from edgepack.bundle.verify import verify_folder
from edgepack.wire.orders import Desired, ModelOrder
from tests.integration.conftest import Keys
from tests.simulators.broker import Broker
from tests.simulators.bundles import WIDTH, make_bundle
from tests.simulators.controller import Controller
from tests.simulators.device import DEVICE, Device

KILLS = 20
KILLS_AN_UPDATE = 5
SEED = 20261121


def count_hits(killed_in: Counter[str]) -> int:
    """Count the kills that hit an update, and not a pause between updates."""
    return sum(count for state, count in killed_in.items() if state not in RESTING)


def check_serving(device: Device, public_key: Path, allowed: set[str], name: str = "tiny") -> str:
    """The pointer leads to a slot that is verified and whole, and its model runs."""
    pointer = device.pointer(name)
    assert pointer is not None, "no model serves"
    assert pointer.digest in allowed
    folder = slot_folder(device.state_dir, pointer.digest)
    verified = verify_folder(folder, [load_public_key(public_key)], complete=False)
    assert verified.digest == pointer.digest
    variant = verified.manifest.variant(pointer.choice.chosen)
    session = open_session(folder, variant, threads=1)
    outputs = session.run({"x": np.ones((1, WIDTH), np.float32)})
    session.close()
    assert outputs["y"].shape == (1, WIDTH)
    return pointer.digest


def test_kills_leave_the_old_or_the_new_model_serving_and_every_update_completes(
    tmp_path: Path, mosquitto_broker: Broker, controller: Controller, release_keys: Keys
) -> None:
    key, public_key = release_keys
    device = Device(tmp_path / "device", mosquitto_broker.url, public_key)
    rng = random.Random(SEED)
    release = 0
    killed_in: Counter[str] = Counter()

    def offer_next() -> str:
        nonlocal release
        release += 1
        bundle = make_bundle(tmp_path / f"release-{release}", key, release=release)
        controller.hold(bundle)
        controller.offer(DEVICE, bundle.desired(release, soak_s=0.2))
        return bundle.ref.digest

    def wait_committed() -> None:
        controller.wait_for(
            lambda report: report.sequence == release and report.state == "COMMITTED"
        )

    try:
        # The first update shows how long one takes; from then on there is a model to lose.
        old = offer_next()
        device.start()
        wait_committed()
        began = time.monotonic()
        new = offer_next()
        wait_committed()
        length_s = time.monotonic() - began
        assert check_serving(device, public_key, {new}) == new
        kills = 0
        while kills < KILLS or count_hits(killed_in) < KILLS // 2:
            old, new = new, offer_next()
            for _ in range(KILLS_AN_UPDATE):
                time.sleep(rng.uniform(0, length_s))
                device.kill()
                kills += 1
                journal = device.journal()
                assert journal is not None
                killed_in[journal.state] += 1
                check_serving(device, public_key, {old, new})
                device.start()
                is_over = journal.state in RESTING and journal.is_settled
                if is_over and journal.acted_sequence == release:
                    break
            wait_committed()
            assert check_serving(device, public_key, {new}) == new
    finally:
        if device.is_running:
            device.stop()
    assert "Traceback" not in device.said()
    assert not list(device.state_dir.rglob(".*")), "temporary files of killed writers"
    slots = list((device.state_dir / "slots").iterdir())
    assert {slot.name for slot in slots} == {old, new}


def test_kills_at_random_moments_of_two_updates_at_once_lose_neither(
    tmp_path: Path, mosquitto_broker: Broker, controller: Controller, release_keys: Keys
) -> None:
    key, public_key = release_keys
    device = Device(tmp_path / "device", mosquitto_broker.url, public_key)
    rng = random.Random(SEED)
    names = ("ocr", "tiny")
    kills, release = 0, 0
    killed_in: Counter[str] = Counter()
    served: dict[str, set[str]] = {name: set() for name in names}

    def offer_next() -> None:
        nonlocal release
        release += 1
        orders: dict[str, ModelOrder] = {}
        for name in names:
            bundle = make_bundle(tmp_path / f"{name}-{release}", key, name=name, release=release)
            controller.hold(bundle)
            orders[name] = bundle.order(release, soak_s=0.2)
            served[name].add(bundle.ref.digest)
        controller.offer(DEVICE, Desired(sequence=release, models=orders))

    def wait_committed() -> None:
        for name in names:
            controller.wait_for(
                lambda model: model.sequence == release and model.state == "COMMITTED",
                model=name,
            )

    try:
        offer_next()
        device.start()
        wait_committed()
        began = time.monotonic()
        offer_next()
        wait_committed()
        length_s = time.monotonic() - began
        while kills < KILLS or count_hits(killed_in) < KILLS // 2:
            offer_next()
            for _ in range(KILLS_AN_UPDATE):
                time.sleep(rng.uniform(0, length_s))
                device.kill()
                kills += 1
                is_over = True
                for name in names:
                    journal = device.journal(name)
                    assert journal is not None
                    killed_in[journal.state] += 1
                    check_serving(device, public_key, served[name], name)
                    is_over = is_over and is_at_rest(journal) and journal.acted_sequence == release
                device.start()
                if is_over:
                    break
            wait_committed()
    finally:
        if device.is_running:
            device.stop()
    assert "Traceback" not in device.said()
    assert not list(device.state_dir.rglob(".*")), "temporary files of killed writers"
    counters = json.loads((device.state_dir / "releases.json").read_text())["highest"]
    assert counters == dict.fromkeys(names, release)


def is_at_rest(journal: Journal) -> bool:
    return journal.state in RESTING and journal.is_settled and journal.pending is None

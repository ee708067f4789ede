"""Chunks over a real mosquitto: restarts and losses cost time alone."""

import getpass
import time
from pathlib import Path
from typing import Any

import pytest

from tests.integration.fleet.conftest import FleetProcess, MakeBundle, Mosquitto, Serve, Simulate

SIZE_BYTES = 6_000_000
LASTING = ("persistence true", "autosave_interval 1")


def sent_bytes(fleet: FleetProcess) -> int:
    return sum(fleet.info().sent_bytes.values())


def in_the_middle(fleet: FleetProcess, archive: Path) -> str:
    """Start a rollout to all devices at once, and return after a third was sent."""
    name = fleet.roll_out(archive, waves="100%", deadline_s=400.0)
    fleet.wait_until(lambda: sent_bytes(fleet) > SIZE_BYTES // 3, "a third of it was sent")
    assert sent_bytes(fleet) < SIZE_BYTES
    return name


@pytest.mark.parametrize("lasting", [(), LASTING], ids=["forgets", "remembers"])
def test_a_broker_that_restarts_in_the_middle_of_a_wave(
    tmp_path: Path,
    serve: Serve,
    simulation: Simulate,
    make_bundle: MakeBundle,
    lasting: tuple[str, ...],
) -> None:
    user = (f"user {getpass.getuser()}", f"persistence_location {tmp_path}/")
    broker = Mosquitto(tmp_path, "allow_anonymous true", *user, *lasting).start()
    fleet = serve("--broker", broker.url, "--bandwidth", "750kB/s")
    simulation(fleet, count=4)
    name = in_the_middle(fleet, make_bundle(size_bytes=SIZE_BYTES))
    broker.stop()
    time.sleep(1.0)
    broker.start()
    view = fleet.wait_for(name, "FINISHED", "PAUSED")
    assert view.counts == {"COMMITTED": 4}, view
    assert sent_bytes(fleet) < 2 * SIZE_BYTES, "not once for each of four devices"
    broker.stop()


def test_a_depot_that_restarts_in_the_middle_of_a_wave_goes_on(
    serve: Serve, simulation: Simulate, make_bundle: MakeBundle, mosquitto: Mosquitto
) -> None:
    fleet = serve("--broker", mosquitto.url, "--bandwidth", "750kB/s")
    simulation(fleet, count=4)
    name = in_the_middle(fleet, make_bundle(size_bytes=SIZE_BYTES))
    fleet.kill()
    fleet.start()
    view = fleet.wait_for(name, "FINISHED", "PAUSED")
    assert view.counts == {"COMMITTED": 4}, view
    # What lacked at most for the first device, for some, and for the others; not for each of four.
    assert sent_bytes(fleet) < 2.1 * SIZE_BYTES


def test_a_fifth_of_all_chunks_is_lost_and_every_device_has_the_bundle(
    serve: Serve, simulation: Simulate, make_bundle: MakeBundle, mosquitto: Mosquitto
) -> None:
    fleet = serve("--broker", mosquitto.url)
    simulation(fleet, count=6, loss=0.2)
    name = fleet.roll_out(make_bundle(size_bytes=SIZE_BYTES), waves="100%", deadline_s=400.0)
    view = fleet.wait_for(name, "FINISHED", "PAUSED")
    assert view.counts == {"COMMITTED": 6}, view


def test_what_the_depot_may_send_is_shown_and_kept(
    serve: Serve, simulation: Simulate, make_bundle: MakeBundle, mosquitto: Mosquitto
) -> None:
    fleet = serve("--broker", mosquitto.url, "--bandwidth", "1500kB/s")
    simulation(fleet, count=2)
    in_the_middle(fleet, make_bundle(size_bytes=SIZE_BYTES))
    rates: list[Any] = []
    for _ in range(5):
        at, before = time.monotonic(), sent_bytes(fleet)
        time.sleep(0.5)
        rates.append((sent_bytes(fleet) - before) / (time.monotonic() - at))
    assert min(rates) < 2.5e6
    assert sum(rates) / len(rates) < 2.5e6

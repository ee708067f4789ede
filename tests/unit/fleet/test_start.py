"""Start of a rollout: devices by wave, and low cost for a large fleet."""

import hashlib
from pathlib import Path

import msgspec
import pytest
from sqlalchemy import event, insert, select

from edgepack.errors import FleetError
from edgepack.fleet.database import assignments
from edgepack.fleet.database.assignments import Limits
from edgepack.fleet.database.candidates import PAGE, Asked, select_candidates
from edgepack.fleet.database.reports import facts_of, serving_of
from edgepack.fleet.database.schema import AssignmentRow, DeviceRow
from edgepack.fleet.documents.rollouts import Selector
from edgepack.fleet.rollouts.membership import MAX_CLASSES, OTHER_CLASSES
from edgepack.wire.messages import encode
from tests.simulators.world import make_facts
from tests.unit.fleet.world import NEW, OLD, World, says

SITES = ("berlin", "rome", "")


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def fill(world: World, count: int) -> None:
    """Add devices with the previous release; every third is offline."""
    facts = make_facts()
    rows = []
    for n in range(count):
        own = msgspec.structs.replace(facts, hardware_class=f"class {n % 70}", soc=f"soc-{n % 2}")
        said = msgspec.structs.replace(says("COMMITTED", 1, acted=1, active=OLD), facts=own)
        site = SITES[n % 3]
        rows.append(
            {
                "id": f"d{n}",
                "device_group": "g" if n % 5 else "h",
                "enrolled_at": 1.0,
                "online": n % 3 > 0,
                "reported": encode(said).decode(),
                "hardware_class": own.hardware_class,
                "labels": msgspec.json.encode({"site": site} if site else {}).decode(),
                "standing": "settled",
            }
        )
    with world.store.transaction() as session:
        session.connection().execute(insert(DeviceRow), rows)


def waves_of(world: World) -> dict[str, int]:
    with world.store.reading() as session:
        rows = session.execute(select(AssignmentRow.device, AssignmentRow.wave))
        return {device: wave for device, wave in rows}  # noqa: C416 (rows are not pairs to mypy)


def by_rule(devices: list[int], rollout: str) -> list[str]:
    """Return the documented order: online devices first, then by a salted digest."""

    def order(n: int) -> tuple[bool, str]:
        return n % 3 == 0, hashlib.sha256(f"{rollout}/d{n}".encode()).hexdigest()

    return [f"d{n}" for n in sorted(devices, key=order)]


def test_waves_by_number_and_share_are_in_the_documented_order(world: World) -> None:
    fill(world, 200)
    name = world.start(selector=Selector(kind="all"), waves="3,25%,100%")
    order = by_rule(list(range(200)), name)
    assert waves_of(world) == {
        device: 0 if place < 3 else 1 if place < 50 else 2 for place, device in enumerate(order)
    }


def test_a_wave_by_label_or_fact_takes_those_that_no_earlier_one_has(world: World) -> None:
    fill(world, 90)
    selector = Selector(kind="where", where="soc=soc-1")
    name = world.start(selector=selector, waves="site=rome,10,each site,100%")
    devices = [n for n in range(90) if n % 2 == 1]
    rome = {f"d{n}" for n in devices if SITES[n % 3] == "rome"}
    left = [device for device in by_rule(devices, name) if device not in rome]
    found = waves_of(world)
    assert {device for device, wave in found.items() if wave == 0} == rome
    # `10` is the total addressed so far, and Rome alone has more; then comes Berlin, then the rest.
    berlin = {device for device in left if SITES[int(device[1:]) % 3] == "berlin"}
    assert {device for device, wave in found.items() if wave == 1} == berlin
    assert {device for device, wave in found.items() if wave == 2} == set(left) - berlin


def test_devices_are_counted_under_the_most_frequent_hardware_classes(world: World) -> None:
    fill(world, 700)
    name = world.start(selector=Selector(kind="all"), waves="100%")
    with world.store.reading() as session:
        found = assignments.counts_by_class(session, [int(name[1:])])[int(name[1:])]
    assert len(found) == MAX_CLASSES + 1
    assert found[OTHER_CLASSES][0] == {"WAITING": 10 * (70 - MAX_CLASSES)}


def test_no_row_of_a_device_is_loaded_to_start_a_rollout(world: World) -> None:
    fill(world, 2 * PAGE + 1)
    loaded: list[str] = []

    def on_load(row: DeviceRow, _: object) -> None:
        loaded.append(row.id)

    event.listen(DeviceRow, "load", on_load)
    try:
        world.start(selector=Selector(kind="all"), waves="1,100%")
    finally:
        event.remove(DeviceRow, "load", on_load)
    assert not loaded
    assert len(waves_of(world)) == 2 * PAGE + 1


def steps_of_offer(world: World, rollout: int) -> int:
    """Count SQLite's machine instructions, in hundreds, to find the next devices to offer."""
    counted = 0

    def count() -> int:
        nonlocal counted
        counted += 1
        return 0

    with world.store.reading() as session:
        assignments.waiting(session, rollout, 0, 5, Limits())  # what is prepared once
        connection = session.connection().connection.driver_connection
        assert connection is not None
        connection.set_progress_handler(count, 100)
        try:
            assert len(assignments.waiting(session, rollout, 0, 5, Limits())) == 5
        finally:
            connection.set_progress_handler(None, 0)
    return counted


def test_whom_to_offer_it_next_costs_the_same_however_many_wait(tmp_path: Path) -> None:
    counts = []
    for count in (100, 6000):
        (tmp_path / str(count)).mkdir()
        world = World(tmp_path / str(count))
        fill(world, count)
        counts.append(steps_of_offer(world, int(world.start(waves="100%")[1:])))
    few, many = counts
    assert many <= few + 1


def test_named_devices_that_are_not_enrolled_are_told_in_the_order_of_the_names(
    world: World,
) -> None:
    fill(world, 3)
    selector = Selector(kind="devices", devices=("d2", "zoe", "d1", "adam"))
    with pytest.raises(FleetError, match="not enrolled: zoe, adam"):
        world.start(selector=selector)
    assert not waves_of(world)


@pytest.mark.parametrize(
    "selector",
    [
        Selector(kind="group", group="nobody"),
        Selector(kind="where", where="soc=none"),
        Selector(kind="where", where="not online=yes and online=yes"),
    ],
    ids=str,
)
def test_a_selector_that_means_nobody_starts_nothing(world: World, selector: Selector) -> None:
    fill(world, 3)
    with pytest.raises(FleetError) as refusal:
        world.start(selector=selector)
    assert "no device is enrolled in" in str(refusal.value) or "there are no" in str(refusal.value)
    assert refusal.value.found_in == "groups: g, h"
    assert not waves_of(world)


def test_a_selector_that_means_everybody_is_everybody_once(world: World) -> None:
    fill(world, 10)
    everybody = Selector(kind="where", where="online=yes or not online=yes")
    with world.store.reading() as session:
        found = select_candidates(session, everybody, Asked("digits"))
    assert [one.id for one in found] == [f"d{n}" for n in range(10)]
    assert {one.runs for one in found} == {OLD}
    world.start(selector=everybody, waves="100%")
    assert len(waves_of(world)) == 10


def test_of_what_a_device_never_said_nothing_is_read() -> None:
    assert serving_of(None, NEW.name) == (None, None)
    assert serving_of(encode(says("IDLE")).decode(), "another") == (None, None)
    assert facts_of(encode(says("IDLE")).decode()) is None

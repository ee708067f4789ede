"""Lists of devices are in the order in which people sort names, page by page."""

import pytest

from edgepack.fleet.database import inventory, natural_pages
from edgepack.fleet.documents.devices import DeviceFilter
from edgepack.fleet.rollouts import execution, status
from tests.unit.fleet.world import World

NAMES = [f"sim-{number}" for number in (1, 2, 3, 9, 10, 11, 20, 100)]


def paged(world: World, limit: int, wanted: DeviceFilter) -> list[str]:
    found: list[str] = []
    with world.store.reading() as session:
        while page := inventory.list_devices(
            session, wanted, after=found[-1] if found else "", limit=limit
        ):
            found += [view.device for view in page]
    return found


@pytest.mark.parametrize("wanted", [DeviceFilter(), DeviceFilter(where="group=g")])
def test_pages_of_devices_and_of_parts_are_in_natural_order(
    world: World, wanted: DeviceFilter, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in reversed(NAMES):
        world.enroll(name)
    world.enroll("other", group="h")
    everybody = NAMES if wanted.where else ["other", *NAMES]
    for limit in (1, 3, 100):
        assert paged(world, limit, wanted) == everybody
    number = world.start()
    with world.store.reading() as session:
        rollout = execution.find(session, number)
        first = status.list_assignments(session, rollout, limit=5)
        rest = status.list_assignments(session, rollout, after=first[-1].device, limit=5)
    assert [part.device for part in (*first, *rest)] == NAMES
    monkeypatch.setattr(natural_pages, "SORTED_AT_ONCE", 3)  # as of a very large fleet
    for limit in (1, 3, 100):
        assert paged(world, limit, wanted) == sorted(everybody)

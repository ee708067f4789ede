"""Lists come in pages, so that no request to a large fleet reads the whole fleet."""

import pytest

from edgepack.fleet.database import inventory
from edgepack.fleet.documents.devices import DeviceFilter
from edgepack.fleet.rollouts import execution, status
from tests.unit.fleet.world import NEW, World, says

NAMES = ("cam-1", "cam-2", "cam-10", "dog-1", "dog-2")


@pytest.fixture
def full(world: World) -> World:
    for name in NAMES:
        world.enroll(name)
    return world


def test_pages_of_devices_have_each_device_once_whatever_is_selected(full: World) -> None:
    full.change("dog-1", labels={"site": "berlin"})
    full.change("cam-2", labels={"site": "berlin"})
    with full.store.reading() as session:
        for where, expected in (("", NAMES), ("site=berlin", ("cam-2", "dog-1"))):
            found: list[str] = []
            while page := inventory.list_devices(
                session,
                DeviceFilter(group="g", where=where),
                after=found[-1] if found else "",
                limit=2,
            ):
                assert len(page) <= 2
                found += [view.device for view in page]
            assert tuple(found) == expected


def test_a_rollout_shows_first_who_needs_a_look_and_has_pages_of_the_others(
    full: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = full.start(max_failed_share=1.0)
    full.look()
    full.hear("dog-2", says("REJECTED", 1))
    full.hear("cam-1", says("COMMITTED", 1, active=NEW))
    monkeypatch.setattr(status, "MAX_ASSIGNMENTS", 2)
    view = full.view(name)
    assert [(part.device, part.state) for part in view.assignments] == [
        ("cam-2", "OFFERED"),
        ("dog-2", "FAILED"),
    ]
    assert view.counts == {"OFFERED": 3, "FAILED": 1, "COMMITTED": 1}
    with full.store.reading() as session:
        rollout = execution.find(session, name)
        first = status.list_assignments(session, rollout, limit=3)
        rest = status.list_assignments(session, rollout, after=first[-1].device, limit=3)
        assert tuple(part.device for part in (*first, *rest)) == NAMES
        (failed,) = status.list_assignments(session, rollout, state="FAILED", limit=3)
        assert failed.device == "dog-2"

"""Log lines of devices in the fleet: asked for, taken once, and only from the asked device."""

from pathlib import Path

import pytest

from edgepack.fleet.database import audit, device_logs, devices, enrolment, unsent
from edgepack.fleet.database.audit import Wanted
from edgepack.fleet.documents.logs import LogRequest, LogView
from edgepack.wire.orders import LogOrder
from edgepack.wire.transfers import LogLines
from tests.unit.fleet.world import OLD, World, says


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    for name in ("cam-1", "cam-2"):
        made.enroll(name)
        made.hear(name, says("COMMITTED", active=OLD))
    return made


def ask(world: World, device: str = "cam-1", *, lines: int = 2, valid_s: float = 1e5) -> LogOrder:
    with world.store.transaction("ann") as session:
        (row,) = devices.find_devices(session, (device,))
        request = LogRequest(lines=lines, valid_s=valid_s)
        unsent.add(session, (device_logs.begin(session, row, request, world.store.now()),))
    world.look()
    order = world.told(device)[-1].log
    assert order is not None
    return order


def shown(world: World, device: str = "cam-1", *, later_s: float = 0.0) -> LogView:
    with world.store.reading() as session:
        return device_logs.show(session, device, world.store.now() + later_s)


def test_answer_is_stored_once_and_ends_the_request(world: World) -> None:
    assert shown(world).state == "NONE"
    order = ask(world)
    assert (order.lines, shown(world).state) == (2, "ASKED")
    with world.store.reading() as session:
        (entry,) = audit.entries(session, Wanted(device="cam-1"), 10)[:1]
    assert (entry.action, entry.actor) == ("logs.request", "ann")
    world.hear_twice("cam-1", LogLines(request=order.request, lines=("a", "b", "c")), "log")
    assert shown(world).state == "RECEIVED"
    assert shown(world).lines == ("b", "c"), "no more than the fleet asked for"
    assert world.told("cam-1")[-1].log is None
    assert world.told("cam-1")[-1].models == world.told("cam-1")[-2].models
    world.hear("cam-1", LogLines(request=order.request, lines=("other",)), "log")
    assert shown(world).lines == ("b", "c")
    again = ask(world)
    assert again.request != order.request
    world.hear("cam-1", LogLines(request=order.request, lines=("old",)), "log")
    assert shown(world).state == "ASKED"
    world.hear("cam-1", LogLines(request=again.request, because="the owner forbids it"), "log")
    assert (shown(world).state, shown(world).because) == ("REFUSED", "the owner forbids it")


def test_lines_that_nobody_asked_for_are_dropped(world: World) -> None:
    world.hear("cam-1", LogLines(request="l1t1", lines=("a",)), "log")
    assert shown(world).state == "NONE"
    order = ask(world)
    world.hear("cam-2", LogLines(request=order.request, lines=("a",)), "log")
    assert shown(world).state == "ASKED"
    assert shown(world, "cam-2").state == "NONE"
    world.hear("cam-1", b'{"v": 1, "request": "../x", "lines": [1]}', "log")
    world.hear("cam-1", b'{"v": 1, "request": "l1", "lines": ["%s"]}' % (b"x" * 501), "log")
    assert shown(world).state == "ASKED"
    assert shown(world, later_s=2e5).state == "EXPIRED"


def test_request_of_a_removed_device_ends_with_the_device(world: World) -> None:
    order = ask(world)
    with world.store.transaction("ann") as session:
        rows = devices.find_devices(session, ("cam-1",))
        unsent.add(session, enrolment.remove(session, rows, world.store.now()))
    world.look()
    world.enroll("cam-1")
    world.hear("cam-1", says("COMMITTED", active=OLD))
    assert shown(world).state == "NONE"
    world.hear("cam-1", LogLines(request=order.request, lines=("a",)), "log")
    assert shown(world).state == "NONE"


def test_old_lines_are_deleted(world: World) -> None:
    ask(world)
    with world.store.transaction() as session:
        device_logs.forget_old(session, world.store.now() + device_logs.KEEP_S - 1)
    assert shown(world).state == "ASKED"
    with world.store.transaction() as session:
        device_logs.forget_old(session, world.store.now() + device_logs.KEEP_S + 1)
    assert shown(world).state == "NONE"

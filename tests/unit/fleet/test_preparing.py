"""A rollout to many devices is written piece by piece: no device acts on a half."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from sqlalchemy import update
from sqlalchemy.orm import Session

from edgepack.errors import FleetError
from edgepack.fleet.database import enrolment
from edgepack.fleet.database.candidates import Asked, Candidate, select_candidates
from edgepack.fleet.database.schema import DeviceRow, RolloutRow
from edgepack.fleet.documents.rollouts import RolloutRequest, RolloutView, Selector
from edgepack.fleet.rollouts import execution, membership, starting
from tests.unit.fleet.test_counters import counted, recounted
from tests.unit.fleet.world import NEW, OLD, World

DEVICES = 7
AT_ONCE = 3


class Between:
    """Acts between the pieces of a rollout in preparation."""

    def __init__(self, acts: Mapping[int, Callable[[], object]]) -> None:
        self._acts = acts
        self.pauses = 0

    def sleep(self, _: float) -> None:
        self.pauses += 1
        self._acts.get(self.pauses, lambda: None)()


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    for number in range(DEVICES):
        world.enroll(f"d{number}")
    return world


def start(
    world: World,
    acts: Mapping[int, Callable[[], object]] | None = None,
    *,
    supersede: bool = False,
    digest: str = NEW.digest,
) -> str:
    """Start a rollout to all devices, in pieces; `acts` follow the first piece, and so on."""
    request = RolloutRequest(
        digest=digest,
        selector=Selector(kind="group", group="g"),
        waves="2,100%",
        supersede=supersede,
    )
    return starting.start(world.store, request, at_once=AT_ONCE, pause=Between(acts or {}).sleep)


def note(seen: list[RolloutView], world: World) -> None:
    world.look()
    seen.append(world.view("r1"))


def test_nobody_is_offered_anything_before_all_devices_have_their_part(world: World) -> None:
    seen: list[RolloutView] = []
    acts = {pause: lambda: note(seen, world) for pause in (1, 2)}
    assert start(world, acts) == "r1"
    assert [(view.state, view.counts) for view in seen] == [
        ("PREPARING", {"WAITING": AT_ONCE}),
        ("PREPARING", {"WAITING": 2 * AT_ONCE}),
    ]
    assert not world.orders("d0")
    view = world.view("r1")
    assert (view.state, view.because) == ("RUNNING", f"{DEVICES} devices have their wave")
    assert view.wave_counts == ({"WAITING": 2}, {"WAITING": DEVICES - 2})
    world.look()
    assert world.view("r1").counts == {"OFFERED": 2, "WAITING": DEVICES - 2}
    assert counted(world) == recounted(world)


def test_what_fits_into_one_piece_runs_at_once(world: World) -> None:
    assert world.view(world.start()).state == "RUNNING"
    assert world.view("r1").because == "started for group g"


def test_whoever_comes_goes_or_moves_meanwhile_has_one_part_or_none(world: World) -> None:
    def remove() -> None:
        with world.store.transaction() as session:
            gone = [session.get_one(DeviceRow, name) for name in ("d0", "d6")]
            enrolment.remove(session, gone, 2.0)

    def join() -> None:
        world.enroll("new")
        with world.store.transaction() as session:  # A device that reports for the first time.
            membership.join(session, session.get_one(DeviceRow, "d5"), 2.0)

    start(world, {1: remove, 2: join})
    assert world.view("r1").state == "RUNNING"
    assert {part.device for part in world.view("r1").assignments} == {
        *(f"d{number}" for number in range(1, 6)),
        "new",
    }
    assert counted(world) == recounted(world)


def test_devices_that_were_enrolled_after_they_were_read_are_in_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = "edgepack.fleet.rollouts.starting.select_candidates"

    def enroll_late(session: Session, selector: Selector, asked: Asked) -> list[Candidate]:
        found = select_candidates(session, selector, asked)
        monkeypatch.setattr(reading, select_candidates)
        world.enroll("late")
        return found

    monkeypatch.setattr(reading, enroll_late)
    start(world)
    assert world.view("r1").counts == {"WAITING": DEVICES + 1}


def test_no_other_rollout_of_the_model_begins_meanwhile(world: World) -> None:
    def other() -> None:
        for supersede in (False, True):
            with pytest.raises(FleetError, match="rollout r1 of digits is being prepared"):
                world.start(OLD, supersede=supersede)

    start(world, {1: other})
    assert world.view("r1").state == "RUNNING"


def test_a_rollout_that_is_aborted_meanwhile_stays_so(world: World) -> None:
    def abort() -> None:
        with world.store.transaction() as session:
            execution.abort(session, execution.find(session, "r1"), because="no", now=2.0)

    with pytest.raises(FleetError, match="rollout r1 is ABORTED: no"):
        start(world, {2: abort})
    view = world.view("r1")
    assert (view.state, view.counts) == ("ABORTED", {"WITHDRAWN": 2 * AT_ONCE})


class KilledError(BaseException):
    """The controller ended at this moment."""


def test_one_whose_controller_was_killed_is_aborted_and_can_be_started_again(world: World) -> None:
    def kill() -> None:
        raise KilledError

    with pytest.raises(KilledError):
        start(world, {1: kill})
    again = world.reopened()
    again.look()
    assert again.view("r1").state == "PREPARING", "whoever prepares it may be another controller"
    with again.store.transaction() as session:
        session.execute(update(RolloutRow).values(changed_at=RolloutRow.changed_at - 61.0))
    again.look()
    view = again.view("r1")
    assert (view.state, view.counts) == ("ABORTED", {"WITHDRAWN": AT_ONCE})
    assert view.because == "not prepared: nothing was added for 60 s"
    assert counted(again) == recounted(again)
    assert not again.orders("d0")
    assert start(again) == "r2"
    assert again.view("r2").counts == {"WAITING": DEVICES}
    again.store.close()


def test_devices_are_taken_over_once_all_have_their_part(world: World) -> None:
    world.start(OLD)
    seen: list[RolloutView] = []
    start(world, {2: lambda: note(seen, world)}, supersede=True)
    assert seen[0].state == "RUNNING", "the older one goes on meanwhile"
    assert (world.view("r1").state, world.view("r2").state) == ("ABORTED", "RUNNING")
    assert world.view("r1").because == f"superseded by r2: {DEVICES} devices taken over by r2"

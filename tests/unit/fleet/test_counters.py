"""Counters of waves equal a recount, after any events of a rollout in any order."""

import contextlib
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import func, select

from edgepack.errors import FleetError
from edgepack.fleet.database import assignments, enrolment
from edgepack.fleet.database.schema import AssignmentRow, DeviceRow, RolloutRow
from edgepack.fleet.rollouts import execution
from tests.unit.fleet.world import NEW, OLD, World, says

Act = Callable[[World], object]

DEVICES = ("a", "b", "c", "d")
STATES = ("DOWNLOADING", "SOAKING", "COMMITTED", "ROLLED_BACK", "REJECTED", "IDLE", "UNHEARD_OF")


def recounted(world: World) -> dict[int, dict[int, Counter[str]]]:
    found: dict[int, dict[int, Counter[str]]] = {}
    columns = (AssignmentRow.rollout, AssignmentRow.wave, AssignmentRow.state)
    with world.store.reading() as session:
        for rollout, wave, state, number in session.execute(
            select(*columns, func.count()).group_by(*columns)
        ):
            found.setdefault(rollout, {}).setdefault(wave, Counter())[state] = number
    return found


def counted(world: World) -> dict[int, dict[int, Counter[str]]]:
    with world.store.reading() as session:
        numbers = session.scalars(select(RolloutRow.number)).all()
        found = assignments.counts(session, numbers)
    kept = {number: dict(enumerate(waves)) for number, waves in found.items()}
    return {
        number: filled
        for number, waves in kept.items()
        if (filled := {wave: counts for wave, counts in waves.items() if counts})
    }


def hear(device: str, state: str, behind: int) -> Act:
    """Return a report about the last order, or about an earlier order."""

    def act(world: World) -> None:
        with world.store.reading() as session:
            row = session.get(DeviceRow, device)
            sequence = row.desired_sequence if row else 0
        active = NEW if state in ("COMMITTED", "IDLE") else None
        said = says(state, max(0, sequence - behind), active=active, previous=OLD)
        world.hear(device, said)

    return act


def remove(device: str) -> Act:
    def act(world: World) -> None:
        with world.store.transaction() as session:
            if (row := session.get(DeviceRow, device)) is not None:
                enrolment.remove(session, [row], 2.0)

    return act


def tell(event: str, rollout: str) -> Act:
    def act(world: World) -> None:
        with world.store.transaction() as session:
            found = execution.find(session, rollout)
            if event == "abort":
                execution.abort(session, found, because="x", now=2.0)
            else:
                (execution.pause if event == "pause" else execution.resume)(session, found, 2.0)

    return act


def expire(world: World) -> None:
    """Move past the deadline of all offers."""
    with world.store.transaction() as session:
        for row in session.scalars(select(AssignmentRow)):
            row.offered_at = None if row.offered_at is None else 1.0
    world.look()


DEVICE, ROLLOUT = st.sampled_from(DEVICES), st.sampled_from(("r1", "r2", "r3"))
ACTS: st.SearchStrategy[Act] = st.one_of(
    st.builds(hear, DEVICE, st.sampled_from(STATES), st.integers(0, 1)),
    st.builds(hear, DEVICE, st.just("COMMITTED"), st.just(0)),
    st.builds(lambda device: lambda world: world.enroll(device), DEVICE),
    st.builds(remove, DEVICE),
    st.builds(tell, st.sampled_from(("pause", "resume", "abort")), ROLLOUT),
    st.builds(lambda rollout: lambda world: world.take_back(rollout), ROLLOUT),
    st.just(lambda world: world.start(waves="1,100%", max_failed_share=1.0)),
    st.just(World.look),
    st.just(expire),
)


@settings(max_examples=10)
@given(st.lists(ACTS, min_size=10, max_size=40))
def test_whatever_happens_the_counters_are_what_a_recount_gives(acts: list[Act]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        for device in DEVICES[:3]:
            world.enroll(device)
        world.start(waves="1,100%", max_failed_share=1.0)
        for act in acts:
            with contextlib.suppress(FleetError):  # refused: then nothing changed
                act(world)
            assert counted(world) == recounted(world)
            assert not world.inbox.counters["broken"]
        before = counted(world)
        again = world.reopened()
        assert counted(again) == before
        again.look()
        assert counted(again) == recounted(again)
        again.store.close()

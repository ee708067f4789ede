"""Old, unused releases that could be withdrawn."""

from hashlib import sha256

from msgspec.structs import replace

from edgepack.fleet.rollouts.release_use import find_unneeded
from edgepack.wire.orders import BundleRef
from tests.unit.fleet.world import NEW, OLD, World, release_row, says


def release(number: int) -> BundleRef:
    digest = sha256(str(number).encode()).hexdigest()
    return replace(NEW, version=f"{number}.0.0", release=number, digest=digest)


def unneeded(world: World, keep: int) -> list[str]:
    with world.store.reading() as session:
        return [row.version for row in find_unneeded(session, keep)]


def test_what_a_device_runs_or_shall_run_and_the_newest_are_needed(world: World) -> None:
    with world.store.transaction() as session:
        session.add_all([release_row(release(number)) for number in range(3, 9)])
    assert unneeded(world, 1) == [f"{number}.0.0" for number in range(7, 0, -1)]
    assert unneeded(world, 3) == [f"{number}.0.0" for number in range(5, 0, -1)]
    assert unneeded(world, 99) == []
    world.enroll("a")
    world.hear("a", says("COMMITTED", 0, active=OLD))
    assert OLD.version not in unneeded(world, 1)
    world.start(release(4))
    world.look()
    assert unneeded(world, 1) == ["7.0.0", "6.0.0", "5.0.0", "3.0.0", NEW.version]

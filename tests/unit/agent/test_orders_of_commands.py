"""Orders of commands on the device, while an update of the model runs."""

import pytest

from edgepack.errors import DeviceError
from tests.simulators.world import World
from tests.unit.agent.conftest import Releases


def run_until(world: World, state: str) -> None:
    for _ in range(400):
        if world.journal.state == state:
            return
        wait_s = world.models.advance()
        if not world.link.deliver(world.models):
            world.now += 0.5 if wait_s is None else min(max(wait_s, 0.001), 0.5)
    raise AssertionError(f"the update did not reach {state}: {world.journal.state}")


def test_order_for_an_older_release_does_not_end_a_running_update(
    world: World, releases: Releases
) -> None:
    world.updater.orders.offer(releases.two.order(2))
    assert world.settle() == "COMMITTED"
    world.updater.orders.offer(releases.three.order(3, soak_s=100))
    run_until(world, "SOAKING")
    reason = (
        "release 1 is offered, release 2 was committed here; the update to tiny-1.3.0 continues"
    )
    with pytest.raises(DeviceError, match=reason):
        world.updater.orders.install(releases.one.order(0))
    assert world.journal.pending is None
    assert world.settle() == "COMMITTED"
    assert world.pointer is not None
    assert world.pointer.bundle == releases.three.ref


@pytest.mark.parametrize("by", ["a command", "the fleet"])
def test_second_install_of_a_release_does_not_shorten_the_soak_of_the_first(
    world: World, releases: Releases, by: str
) -> None:
    if by == "a command":
        world.updater.orders.install(releases.two.order(0, soak_s=100))
    else:
        world.updater.orders.offer(releases.two.order(2, soak_s=100))
    assert world.updater.orders.install(releases.two.order(0, soak_s=1)) is not None
    run_until(world, "SOAKING")
    began = world.now
    assert world.updater.orders.install(releases.two.order(0, soak_s=1)) == "adopted"
    assert world.settle() == "COMMITTED"
    assert world.now - began >= 99
    offer = world.journal.offer
    assert offer is not None
    assert offer.rollout == ("r0" if by == "a command" else "r2")


def test_second_install_of_a_release_may_lengthen_the_soak(
    world: World, releases: Releases
) -> None:
    world.updater.orders.install(releases.two.order(0, soak_s=1))
    world.updater.orders.install(releases.two.order(0, soak_s=100))
    run_until(world, "SOAKING")
    began = world.now
    assert world.settle() == "COMMITTED"
    assert world.now - began >= 99

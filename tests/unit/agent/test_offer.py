"""Offers that are refused, with reason and numbers, before a byte of a model is fetched."""

import msgspec
import pytest

from edgepack.agent.config import LimitConfig
from edgepack.bundle.manifest import Manifest
from edgepack.errors import TransferError
from edgepack.wire.orders import BundleRef, RunModel
from tests.simulators.world import START, World, make_facts
from tests.unit.agent.conftest import Releases


def refusal(world: World, desired: RunModel) -> str:
    """Offer and return the reason of the rejection; no part of a model was fetched."""
    before = {slot.name for slot in (world.state_dir / "slots").iterdir()}
    assert world.updater.orders.offer(desired) == "taken"
    assert world.settle() == "REJECTED"
    assert {slot.name for slot in (world.state_dir / "slots").iterdir()} == before
    assert "DOWNLOADING" not in world.seen
    assert world.pointer is not None
    assert world.pointer.bundle.release == 1
    return world.journal.because


def test_no_variant_for_this_device(world: World, releases: Releases) -> None:
    assert refusal(world, releases.arm.order(2)) == (
        "no variant fits this device: cpu: it is for aarch64, this device is x86_64"
    )


def test_a_device_that_changed_is_judged_as_it_is_now(world: World, releases: Releases) -> None:
    world.facts = make_facts(arch="aarch64")
    world.updater.orders.offer(releases.arm.order(2))
    assert world.settle() == "COMMITTED"


def test_a_variant_that_memory_has_no_room_for_leaves_the_others(
    world: World, releases: Releases, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {"cpu": 10, "cpu-vnni": 1000}
    monkeypatch.setattr(Manifest, "memory_bytes", lambda _, name: sizes[name])
    world.limits = LimitConfig(disk_reserve_bytes=0, memory_bytes=100)
    world.boot().start()
    world.updater.orders.offer(releases.two.order(2))
    assert world.settle() == "COMMITTED"
    assert world.journal.candidates == ("cpu",)
    assert world.journal.rejected == {
        "cpu-vnni": "it needs 1000 bytes of memory, and limits.memory_bytes leaves 90"
    }


def test_memory_for_no_variant_is_rejected_with_the_numbers_of_the_smallest(
    world: World, releases: Releases, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {"cpu": 95, "cpu-vnni": 1000}
    monkeypatch.setattr(Manifest, "memory_bytes", lambda _, name: sizes[name])
    world.limits = LimitConfig(disk_reserve_bytes=0, memory_bytes=100)
    world.boot().start()
    because = refusal(world, releases.two.order(2))
    assert "needs 95 bytes" in because
    assert "90 are missing" in because


def test_no_room(world: World, releases: Releases) -> None:
    world.limits = LimitConfig(disk_reserve_bytes=10**18)
    world.boot().start()
    because = refusal(world, releases.two.order(2))
    assert "no room: the update needs 1" in because
    assert "1000000000000000000 must stay free" in because


def test_a_bundle_by_another_key(world: World, releases: Releases) -> None:
    assert "which is not trusted" in refusal(world, releases.foreign.order(2))


def test_an_older_release(world: World, releases: Releases) -> None:
    world.updater.orders.offer(releases.three.order(2))
    assert world.settle() == "COMMITTED"
    world.updater.orders.offer(releases.two.order(3))
    assert world.settle() == "REJECTED"
    assert world.journal.because == (
        "older release: tiny release 2 is offered, release 3 was committed here"
    )


def test_going_back_leads_only_to_the_release_committed_before(
    world: World, releases: Releases
) -> None:
    for sequence, bundle in ((2, releases.two), (3, releases.three)):
        world.updater.orders.offer(bundle.order(sequence))
        assert world.settle() == "COMMITTED"
    world.updater.orders.offer(releases.one.order(4, rollback=True))
    assert world.settle() == "REJECTED"
    assert "the previous committed release is release 2" in world.journal.because
    asked = world.link.asked
    world.updater.orders.offer(releases.two.order(5, rollback=True))
    assert world.settle() == "COMMITTED"
    assert world.pointer is not None
    assert world.pointer.bundle == releases.two.ref
    assert world.link.asked == asked  # Its slot was kept: nothing had to be sent.
    # The counter did not go down with it.
    world.updater.orders.offer(releases.one.order(6))
    assert world.settle() == "REJECTED"


def test_a_bundle_that_serves_already_is_committed_at_once(
    world: World, releases: Releases
) -> None:
    world.updater.orders.offer(releases.one.order(2))
    assert world.settle() == "COMMITTED"
    assert world.seen == ["OFFERED", "COMMITTED"]
    assert world.journal.because == "this bundle serves already"
    assert world.probed == {"cpu": 1}, "it was probed again"


@pytest.mark.parametrize(
    ("field", "value"), [("version", "9.9"), ("release", 9), ("digest", "f" * 64)]
)
def test_a_signed_bundle_that_is_not_the_one_offered(
    world: World, releases: Releases, field: str, value: object
) -> None:
    desired = releases.two.order(2)
    lie = msgspec.structs.replace(desired.bundle, **{field: value})
    because = refusal(world, msgspec.structs.replace(desired, bundle=lie))
    assert f"the signed bundle has {field}" in because
    assert f"{value!r} was offered" in because


def test_an_expired_offer(world: World, releases: Releases) -> None:
    desired = releases.two.order(2, expires_at=START - 60)
    world.now = START
    assert world.updater.orders.offer(desired) == "refused"
    assert world.settle() == "REJECTED"
    assert world.journal.because == "the offer expired 60 s ago"
    assert world.updater.orders.offer(desired) == "known"


def test_an_expired_offer_does_not_disturb_an_update(world: World, releases: Releases) -> None:
    def offer_expired(state: str) -> None:
        if state == "STAGED":
            world.on_move = lambda _state: None
            late = releases.three.order(3, expires_at=world.now - 1)
            assert world.updater.orders.offer(late) == "refused"

    world.on_move = offer_expired
    world.updater.orders.offer(releases.two.order(2))
    assert world.settle() == "COMMITTED"
    assert world.pointer is not None
    assert world.pointer.bundle.release == 2
    assert [event.because for event in world.events("refused")] == ["the offer expired 1 s ago"]


def test_an_offer_that_was_acted_on_is_not_acted_on_again(world: World, releases: Releases) -> None:
    assert world.updater.orders.offer(releases.two.order(1)) == "known"
    world.settle()
    assert world.seen == []


BUNDLE = BundleRef(name="tiny", version="1", release=1, digest="0" * 64)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"sequence": 0}, "sequence is 0"),
        ({"sequence": 1 + 2**32 + 1}, "sequence is"),
        ({"rollout": "x" * 101}, "rollout is"),
        ({"rollout": "line\nbreak"}, "rollout is 'line\\\\nbreak'"),
        ({"soak_s": -1.0}, "soak_s is -1.0"),
        ({"soak_s": float("nan")}, "soak_s is nan"),
        ({"min_inferences": -1}, "min_inferences is -1"),
        ({"deadline_s": -1.0}, "deadline_s is -1.0"),
        ({"deadline_s": float("inf")}, "deadline_s is inf"),
        ({"expires_at": float("inf")}, "expires_at is inf"),
        ({"bundle": msgspec.structs.replace(BUNDLE, digest="../../etc")}, "bundle.digest is"),
        ({"bundle": msgspec.structs.replace(BUNDLE, digest="A" * 64)}, "bundle.digest is"),
        ({"bundle": msgspec.structs.replace(BUNDLE, name="other")}, "bundle.name is 'other'"),
        ({"bundle": msgspec.structs.replace(BUNDLE, release=-1)}, "bundle.release is -1"),
    ],
)
def test_an_offer_that_makes_no_sense_names_the_field(
    world: World, releases: Releases, changes: dict[str, object], named: str
) -> None:
    desired = msgspec.structs.replace(releases.two.order(2), **changes)
    with pytest.raises(TransferError, match=named):
        world.updater.orders.offer(desired)
    assert world.journal.acted_sequence == 1


@pytest.mark.parametrize(
    "changes", [{"path": "../x"}, {"size_bytes": 10**12}, {"size_bytes": 0}, {"sha256": "x"}]
)
def test_an_offer_whose_files_make_no_sense_is_refused(
    world: World, releases: Releases, changes: dict[str, object]
) -> None:
    desired = releases.two.order(2)
    manifest = msgspec.structs.replace(desired.manifest, **changes)
    with pytest.raises(TransferError, match=r"manifest\.json: "):
        world.updater.orders.offer(msgspec.structs.replace(desired, manifest=manifest))

"""What a device believes in good times: first metadata, new keys, long sleep, damage."""

import shutil
from pathlib import Path

import pytest

from edgepack.agent.update.device_trust import FIRST_METADATA_S
from edgepack.errors import TrustError
from edgepack.trust.sources import FolderSource
from edgepack.wire.orders import CaptureOrder, Desired
from tests.simulators.repository import RepositoryWorld
from tests.simulators.trusting_device import TrustingDevice, resigned, wants, word
from tests.unit.trust.conftest import Shelf


@pytest.fixture
def device(world: RepositoryWorld, shelf: Shelf, tmp_path: Path) -> TrustingDevice:
    world.publish(shelf.one)
    return TrustingDevice(world, tmp_path / "state")


def test_a_new_device_warns_only_when_it_waits_in_vain_for_its_first_metadata(
    device: TrustingDevice, shelf: Shelf
) -> None:
    assert device.trust.is_lacking
    assert device.trust.trouble == ""
    device.clock_s += FIRST_METADATA_S
    assert device.trust.trouble == "nothing new is installed: there is no timestamp yet"
    device.hear_all(wants(shelf.one, sequence=1))
    assert device.trust.trouble == ""


def test_a_new_device_installs_what_both_say(device: TrustingDevice, shelf: Shelf) -> None:
    device.hear_all(wants(shelf.one, sequence=1))
    assert device.installs == [("tiny", 1)]
    assert device.trust.trouble == ""
    assert device.trust.reported.is_whole


@pytest.mark.parametrize("order", ["as sent", "backwards"])
def test_the_order_in_which_things_come_does_not_matter(
    device: TrustingDevice, shelf: Shelf, order: str
) -> None:
    said = {**device.world.repository.messages()}
    said["desired"] = word(device.world, "cam-1", wants(shelf.one, sequence=1))
    items = list(said.items())
    for name, content in items if order == "as sent" else reversed(items):
        device.hear(name, content)
    assert device.installs == [("tiny", 1)]


def test_an_order_waits_for_the_metadata_that_the_director_knew(
    device: TrustingDevice, shelf: Shelf
) -> None:
    device.hear_metadata()
    device.world.publish(shelf.two)
    device.hear("desired", word(device.world, "cam-1", wants(shelf.two, sequence=1)))
    assert device.installs == []
    assert device.refused == {}
    assert device.trust.is_waiting
    device.hear_metadata()
    assert device.installs == [("tiny", 2)]


def test_nothing_wanted_is_heard_as_such(device: TrustingDevice) -> None:
    device.hear_metadata()
    device.trust.put_orders(word(device.world, "cam-1", Desired(sequence=0, models={})))
    decision = device.trust.turn()
    assert decision is not None
    assert decision.desired == Desired(sequence=0, models={})


def test_a_device_that_slept_through_five_roots_follows(
    device: TrustingDevice, shelf: Shelf
) -> None:
    device.hear_all(wants(shelf.one, sequence=1))
    for role in ("root", "timestamp", "root", "snapshot", "targets"):
        device.world.rotate(role)
    device.world.rotate("director")
    device.world.publish(shelf.two)
    device.hear_all(wants(shelf.two, sequence=2))
    assert device.trust.reported.root == 6
    assert device.installs == [("tiny", 1), ("tiny", 2)]
    device.restart()
    assert device.trust.reported.root == 6


def test_a_root_that_is_missing_in_between_is_waited_for(
    device: TrustingDevice, shelf: Shelf
) -> None:
    for _ in range(3):
        device.world.rotate("root")
    device.world.rotate("timestamp")
    messages = device.world.repository.messages()
    missing = messages.pop("3.root.json")
    for name, content in messages.items():
        device.hear(name, content)
    assert device.trust.reported.root == 2
    device.hear("3.root.json", missing)
    assert device.trust.reported.root == 5
    device.hear_all(wants(shelf.one, sequence=1))
    assert device.installs == [("tiny", 1)]


@pytest.mark.parametrize("damage", ["emptied", "garbage", "folder in its place", "all gone"])
def test_a_damaged_cache_is_fetched_again_and_keeps_nothing_from_starting(
    device: TrustingDevice, shelf: Shelf, damage: str
) -> None:
    device.world.rotate("root")
    device.hear_all(wants(shelf.one, sequence=1))
    folder = device.state_dir / "trust"
    for path in folder.iterdir():
        if damage == "emptied":
            path.write_bytes(b"")
        elif damage == "garbage":
            path.write_bytes(b'{"signed": {"_type": "root"')
        elif damage == "folder in its place":
            path.unlink()
            path.mkdir()
    if damage == "all gone":
        shutil.rmtree(folder)
        folder.write_bytes(b"a file")
    device.restart()
    assert device.trust.is_lacking
    device.world.publish(shelf.two)
    device.hear_all(wants(shelf.two, sequence=2))
    assert device.installs == [("tiny", 1), ("tiny", 2)]


def test_what_was_accepted_survives_a_restart(device: TrustingDevice, shelf: Shelf) -> None:
    device.hear_all(wants(shelf.one, sequence=3))
    device.restart()
    assert device.trust.trouble == ""
    assert device.trust.reported.director == 3
    device.hear("desired", word(device.world, "cam-1", wants(shelf.one, sequence=3)))
    assert device.dropped == []


def test_a_root_that_is_none_is_refused_at_the_start(
    device: TrustingDevice, world: RepositoryWorld
) -> None:
    device.root = b"{}"
    with pytest.raises(TrustError, match="metadata of 'root' is not accepted"):
        device.restart()


def test_a_bundle_from_a_stick_is_judged_by_the_metadata_beside_it(
    device: TrustingDevice, shelf: Shelf
) -> None:
    folder = device.world.repository.files.folder
    with pytest.raises(TrustError, match="there is no timestamp yet"):
        device.trust.check_release(shelf.one.ref)
    device.trust.check_release(shelf.one.ref, FolderSource(folder))
    with pytest.raises(TrustError, match=r"tiny 1\.2\.0 is not released"):
        device.trust.check_release(shelf.two.ref, FolderSource(folder))
    device.restart()
    device.trust.check_release(shelf.one.ref)


def test_one_publishers_expired_metadata_stops_that_publisher_alone(
    device: TrustingDevice, shelf: Shelf
) -> None:
    world = device.world
    world.publish(shelf.other)
    device.hear_all(wants(shelf.one, sequence=1))
    world.repository.offline.rename(world.repository.folder / "stick")
    day = 24 * 3600.0
    for _ in range(200):
        world.now += 2 * day
        world.repository.renew()
        if world.now > world.repository.state.publishers["releases"].signed.expires.timestamp():
            break
    # The targets expired with it; they are signed again, and the publisher's releases are not.
    device.hear_all(wants(shelf.one, sequence=2))
    assert device.installs == [("tiny", 1)]
    assert "expired" in device.trust.trouble


def test_requests_for_samples_are_signed_for_one_device_and_do_not_come_back(
    device: TrustingDevice, shelf: Shelf
) -> None:
    asked = CaptureOrder(
        request="r1",
        samples=5,
        of=("drift",),
        recipient="key",
        collect_s=1.5,
        expires_at=device.world.now + 60.5,
    )
    heard: list[dict[str, CaptureOrder]] = []

    def hear(content: bytes) -> None:
        device.trust.put_orders(content)
        try:
            decision = device.trust.turn()
        except TrustError as error:
            device.dropped.append(error.problem)
        else:
            heard.append(dict(decision.desired.captures) if decision else {})

    device.hear_metadata()
    with_request = Desired(sequence=1, models={}, captures={"tiny": asked})
    of_another = word(device.world, "cam-2", with_request)
    signed = word(device.world, "cam-1", with_request)
    hear(of_another)
    hear(resigned(signed, captures={"tiny": "{}"}))
    assert heard == []
    assert [one[:30] for one in device.dropped] == [
        "the director's orders are for ",
        "this device's orders are not s",
    ]
    hear(signed)
    assert heard.pop() == {"tiny": asked}
    hear(word(device.world, "cam-1", Desired(sequence=2, models={})))
    assert heard.pop() == {}
    hear(signed)
    assert heard == []
    assert "older than accepted order 2" in device.dropped[-1]

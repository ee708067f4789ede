"""What a broker, a host or a key in the wrong hands cannot do; the names are TUF's.

Everything is signed for real. `docs/explanation/threat-model.md` names these tests.
"""

from pathlib import Path

import msgspec
import pytest
from securesystemslib.signer import CryptoSigner, Signer
from tuf.api.metadata import Metadata, MetaFile, Snapshot, Targets, Timestamp

from edgepack.fleet.repository import ceremony
from edgepack.fleet.repository.keyring import make_key
from edgepack.fleet.repository.lifetimes import DAY_S, expiry_of
from edgepack.trust.listing import list_release, target_path
from edgepack.trust.roles import MAX_METADATA_BYTES
from edgepack.wire.messages import encode
from edgepack.wire.orders import MAX_SEQUENCE, MAX_STEP, Desired, RemoveModel
from tests.simulators.repository import RepositoryWorld, read_manifest
from tests.simulators.trusting_device import (
    TrustingDevice,
    resigned,
    sign_word,
    wants,
    word,
)
from tests.unit.trust.conftest import Shelf

FOREIGN = CryptoSigner.generate_ecdsa()


@pytest.fixture
def device(world: RepositoryWorld, shelf: Shelf, tmp_path: Path) -> TrustingDevice:
    """It runs release 1 of a model of which there are two."""
    world.publish(shelf.one)
    found = TrustingDevice(world, tmp_path / "state")
    found.hear_all(wants(shelf.one, sequence=5))
    assert found.installs == [("tiny", 1)]
    world.publish(shelf.two)
    return found


def updates_as_if_nothing_had_been(device: TrustingDevice, shelf: Shelf, sequence: int = 6) -> None:
    device.hear_all(wants(shelf.two, sequence=sequence))
    assert device.installs[-1] == ("tiny", 2), (device.refused, device.dropped)


def directors_key(world: RepositoryWorld) -> Signer:
    key_ids = [key.keyid for key in world.repository.state.keys("director")]
    return world.repository.keys.signers(key_ids)[0]


# Of the director's word.


def test_arbitrary_install_of_an_unsigned_order(device: TrustingDevice, shelf: Shelf) -> None:
    device.hear_metadata()
    device.hear("desired", encode(wants(shelf.two, sequence=6)))
    assert device.installs == [("tiny", 1)]
    assert device.dropped == ["this device's orders are not signed by the director"]
    updates_as_if_nothing_had_been(device, shelf)


def test_arbitrary_install_of_an_order_that_somebody_else_signed(
    device: TrustingDevice, shelf: Shelf
) -> None:
    device.hear_metadata()
    device.hear("desired", sign_word(device.world, wants(shelf.two, sequence=6), FOREIGN))
    assert device.installs == [("tiny", 1)]
    updates_as_if_nothing_had_been(device, shelf)


def test_arbitrary_install_by_a_changed_order_under_a_good_signature(
    device: TrustingDevice, shelf: Shelf
) -> None:
    good = word(device.world, "cam-1", wants(shelf.one, sequence=6))
    other = msgspec.json.decode(word(device.world, "cam-1", wants(shelf.two, sequence=6)))
    device.hear_metadata()
    device.hear("desired", resigned(good, targets=other["signed"]["targets"]))
    assert device.installs == [("tiny", 1)]
    updates_as_if_nothing_had_been(device, shelf)


def test_an_expired_order_with_the_highest_number_freezes_nobody(
    device: TrustingDevice, shelf: Shelf
) -> None:
    device.hear_metadata()
    lie = Desired(sequence=MAX_SEQUENCE, models={})
    device.hear("desired", sign_word(device.world, lie, FOREIGN, lives_s=-DAY_S))
    device.hear("desired", sign_word(device.world, lie, directors_key(device.world), lives_s=-1))
    assert device.trust.heard_sequence == 5
    device.restart()
    device.hear_metadata()
    assert device.trust.heard_sequence == 5
    updates_as_if_nothing_had_been(device, shelf)


def test_an_expired_order_is_not_begun(device: TrustingDevice, shelf: Shelf) -> None:
    old = word(device.world, "cam-1", wants(shelf.two, sequence=6))
    device.world.now += 8 * DAY_S
    device.world.repository.renew()
    device.hear_metadata()
    device.hear("desired", old)
    assert device.installs == [("tiny", 1)]
    assert "expired" in device.dropped[-1]
    updates_as_if_nothing_had_been(device, shelf)


def test_another_devices_order_and_another_tenants_are_not_believed(
    device: TrustingDevice, shelf: Shelf
) -> None:
    device.hear_metadata()
    device.hear("desired", word(device.world, "cam-2", wants(shelf.two, sequence=6)))
    key = directors_key(device.world)
    device.hear("desired", sign_word(device.world, wants(shelf.two, sequence=7), key, tenant="b"))
    assert device.installs == [("tiny", 1)]
    assert device.dropped == [
        "the director's orders are for device 'cam-2'",
        "the director's orders are for tenant 'b'",
    ]
    updates_as_if_nothing_had_been(device, shelf)


def test_replay_of_an_older_order_does_not_go_back_and_forth(
    device: TrustingDevice, shelf: Shelf
) -> None:
    back = word(device.world, "cam-1", wants(shelf.one, sequence=5))
    updates_as_if_nothing_had_been(device, shelf)
    forth = word(device.world, "cam-1", wants(shelf.two, sequence=6))
    for _ in range(3):
        device.hear("desired", back)
        device.hear("desired", forth)
    assert {release for _, release in device.installs[1:]} == {2}
    assert device.dropped[0] == "order 5 is older than accepted order 6"
    device.restart()
    device.hear("desired", back)
    assert device.installs[-1] == ("tiny", 2)


def test_another_models_bundle_of_the_same_key_is_no_release_of_this_model(
    device: TrustingDevice, shelf: Shelf
) -> None:
    world = device.world
    world.publish(shelf.other)
    lie = msgspec.structs.replace(shelf.other.ref, name="tiny")
    order = msgspec.structs.replace(shelf.other.order(6), bundle=lie)
    signed = sign_word(world, Desired(sequence=6, models={"tiny": order}), directors_key(world))
    device.hear_metadata()
    device.hear("desired", signed)
    assert device.installs == [("tiny", 1)]
    assert device.refused == {"tiny": "tiny 1.1.0 is not released, or not any more"}
    updates_as_if_nothing_had_been(device, shelf, 7)


def test_a_stolen_directors_key_installs_nothing_that_is_not_released(
    device: TrustingDevice, shelf: Shelf
) -> None:
    world = device.world
    device.hear_metadata()
    device.hear("desired", sign_word(world, wants(shelf.arm, sequence=6), directors_key(world)))
    assert device.installs == [("tiny", 1)]
    assert device.refused == {"tiny": "tiny 1.3.0 is not released, or not any more"}
    # It goes back below what the repository allows as little.
    world.repository.withdraw(shelf.one.ref)
    device.hear_metadata()
    device.hear("desired", sign_word(world, wants(shelf.one, sequence=7), directors_key(world)))
    assert device.installs == [("tiny", 1)]
    assert device.refused == {"tiny": "tiny 1.1.0 is not released, or not any more"}


def test_after_a_stolen_directors_key_was_revoked_its_numbers_bind_nobody(
    device: TrustingDevice, shelf: Shelf
) -> None:
    world = device.world
    stolen = directors_key(world)
    device.hear_metadata()
    far = Desired(sequence=5 + MAX_STEP, models={})
    device.hear("desired", sign_word(world, far, stolen))
    assert device.trust.heard_sequence == 5 + MAX_STEP
    farther = Desired(sequence=MAX_SEQUENCE, models={})
    device.hear("desired", sign_word(world, farther, stolen))
    assert device.trust.heard_sequence == 5 + MAX_STEP
    world.rotate("director")
    device.hear_metadata()
    assert device.trust.heard_sequence == 0
    device.hear("desired", sign_word(world, wants(shelf.one, sequence=9), stolen))
    assert device.trust.heard_sequence == 0
    updates_as_if_nothing_had_been(device, shelf)


def test_a_removal_is_signed_too(device: TrustingDevice, shelf: Shelf) -> None:
    device.hear_metadata()
    removal = Desired(sequence=6, models={"tiny": RemoveModel(sequence=6, issued_at=0.0)})
    good = word(device.world, "cam-1", removal)
    device.hear("desired", resigned(good, removals={}))
    assert device.dropped == ["this device's orders are not signed by the director"]
    device.trust.put_orders(good)
    decision = device.trust.turn()
    assert decision is not None
    assert decision.desired == removal


# Of the image repository.


def test_endless_data_is_not_read(device: TrustingDevice, shelf: Shelf) -> None:
    endless = b"[" * (MAX_METADATA_BYTES + 1)
    for name in ("timestamp.json", "snapshot.json", "2.root.json", "releases.json"):
        assert not device.trust.put_metadata(name, endless)
    device.hear("desired", b"{" * 10_000_000)
    device.hear("desired", b'{"signed":' * 20_000)
    for number in range(2, 400):
        device.hear(f"{number}.root.json", b"x" * 100_000)
    updates_as_if_nothing_had_been(device, shelf)


def test_files_that_no_metadata_can_have_are_not_kept(device: TrustingDevice) -> None:
    for name in ("../root.json", "director.json", "0.root.json", "x.json", "releases-.json"):
        assert not device.trust.put_metadata(name, b"{}")


def test_extraneous_dependency_is_not_installed(device: TrustingDevice, shelf: Shelf) -> None:
    """A release brings no other: what is listed beside it is not installed unless it is ordered."""
    device.world.publish(shelf.other)
    updates_as_if_nothing_had_been(device, shelf)
    assert device.installs == [("tiny", 1), ("tiny", 2)]


def test_fast_forward_by_a_stolen_timestamp_key_ends_when_it_is_rotated(
    device: TrustingDevice, shelf: Shelf
) -> None:
    world = device.world
    stolen = signers(world, "timestamp")
    device.hear_metadata()
    far = Metadata[Timestamp].from_bytes(world.repository.state.timestamp.to_bytes())
    far.signed.version = 2**31
    far.signed.unrecognized_fields["issued_at"] = int(world.now + 1000 * DAY_S)
    far.sign(stolen)
    device.hear("timestamp.json", far.to_bytes())
    device.hear("desired", word(world, "cam-1", wants(shelf.two, sequence=6)))
    assert device.installs == [("tiny", 1)]
    assert "nothing new is installed" in device.trust.trouble
    world.rotate("timestamp")
    updates_as_if_nothing_had_been(device, shelf)
    assert device.trust.trouble == ""


def signers(world: RepositoryWorld, role: str) -> Signer:
    key_ids = [key.keyid for key in world.repository.state.keys(role)]
    return world.repository.keys.signers(key_ids)[0]


def test_indefinite_freeze_is_noticed_and_blocks_new_installs_only(
    device: TrustingDevice, shelf: Shelf
) -> None:
    device.hear_metadata()
    device.world.now += 4 * DAY_S
    late = word(device.world, "cam-1", wants(shelf.two, sequence=6))
    device.hear("desired", late)
    assert device.installs == [("tiny", 1)]
    assert device.trust.trouble.startswith("nothing new is installed: metadata of 'timestamp'")
    assert "expired" in device.trust.trouble
    device.restart()
    assert "expired" in device.trust.trouble
    device.world.repository.renew()
    device.hear("desired", late)
    updates_as_if_nothing_had_been(device, shelf)
    assert device.trust.trouble == ""


def test_a_clock_that_was_never_set_or_set_back_does_not_revive_what_has_expired(
    device: TrustingDevice, shelf: Shelf
) -> None:
    world = device.world
    device.hear_metadata()
    old = dict(world.repository.messages())
    frozen = word(world, "cam-1", wants(shelf.two, sequence=6))
    world.now += 30 * DAY_S
    world.repository.renew()
    device.hear_metadata()
    device.clock_s = -world.now
    device.restart()
    for name, content in old.items():
        device.hear(name, content)
    device.hear("desired", frozen)
    assert device.installs == [("tiny", 1)]
    assert "expired" in device.dropped[-1]
    updates_as_if_nothing_had_been(device, shelf)


def test_mix_and_match_of_files_that_never_were_together(
    device: TrustingDevice, shelf: Shelf
) -> None:
    world = device.world
    old = world.repository.messages()
    world.repository.withdraw(shelf.two.ref)
    new = world.repository.messages()
    device.hear("releases.json", old["releases.json"])
    device.hear("snapshot.json", new["snapshot.json"])
    device.hear("timestamp.json", new["timestamp.json"])
    device.hear("desired", word(world, "cam-1", wants(shelf.two, sequence=6)))
    assert device.installs == [("tiny", 1)]
    assert device.trust.trouble
    device.hear("snapshot.json", old["snapshot.json"])
    assert device.installs == [("tiny", 1)]
    device.hear_metadata()
    assert device.refused == {"tiny": "tiny 1.2.0 is not released, or not any more"}


def test_rollback_of_metadata_does_not_bring_back_what_was_withdrawn(
    device: TrustingDevice, shelf: Shelf
) -> None:
    world = device.world
    old = world.repository.messages()
    world.repository.withdraw(shelf.two.ref)
    device.hear_metadata()
    for name, content in old.items():
        device.hear(name, content)
    device.hear("desired", word(world, "cam-1", wants(shelf.two, sequence=6)))
    assert device.installs == [("tiny", 1)]
    assert device.trust.trouble == ""
    assert device.refused == {"tiny": "tiny 1.2.0 is not released, or not any more"}


def test_wrong_hardware_is_refused_before_a_byte_is_fetched(
    device: TrustingDevice, shelf: Shelf
) -> None:
    device.world.publish(shelf.arm)
    device.hear_all(wants(shelf.arm, sequence=6))
    assert device.installs == [("tiny", 1)]
    assert device.refused == {"tiny": "wrong hardware: released for aarch64, this is x86_64"}


def test_a_key_below_the_threshold_releases_nothing(
    device: TrustingDevice, shelf: Shelf, tmp_path: Path
) -> None:
    world = device.world
    repository = world.repository
    new = make_key(repository.offline, "releases", is_offline=False)
    ceremony.change_keys(repository, "releases", world.now, add=[new], threshold=2)
    one_key = signers(world, "releases")
    lie = repository.draft("releases")
    lie.signed.targets[target_path(shelf.arm.ref)] = list_release(
        shelf.arm.ref, read_manifest(shelf.arm)
    )
    lie.sign(one_key)
    device.hear_all(wants(shelf.one, sequence=6))
    forge(device, {"releases.json": lie})
    device.hear("desired", word(world, "cam-1", wants(shelf.arm, sequence=7)))
    assert ("tiny", 3) not in device.installs
    world.rotate("snapshot")
    world.rotate("timestamp")
    updates_as_if_nothing_had_been(device, shelf, 8)


def test_a_publishers_stolen_key_releases_no_other_publishers_model(
    device: TrustingDevice, shelf: Shelf
) -> None:
    world = device.world
    key = make_key(world.repository.offline, "vision", is_offline=False)
    role, models = "releases-vision", ("ocr-*",)
    ceremony.add_publisher(
        world.repository, role, world.now, keys=[key], models=models, threshold=1
    )
    lie = world.repository.draft(role)
    lie.signed.targets[target_path(shelf.arm.ref)] = list_release(
        shelf.arm.ref, read_manifest(shelf.arm)
    )
    lie.sign(world.repository.keys.signers([key.keyid])[0])
    # The thief has the controller too: snapshot and timestamp say that this is the newest.
    forge(device, {f"{role}.json": lie})
    device.hear("desired", sign_word(world, wants(shelf.arm, sequence=6), directors_key(world)))
    assert device.installs == [("tiny", 1)]


def forge(device: TrustingDevice, files: dict[str, Metadata[Targets]]) -> None:
    """Sends metadata with a snapshot and a timestamp that name it: both online keys are stolen."""
    world = device.world
    state = world.repository.state
    meta = dict(state.snapshot.signed.meta)
    messages = world.repository.messages()
    for name, metadata in files.items():
        messages[name] = metadata.to_bytes()
        meta[name] = MetaFile.from_data(metadata.signed.version, messages[name], ["sha256"])
    snapshot = Metadata(
        Snapshot(
            version=state.snapshot.signed.version + 1,
            expires=expiry_of("snapshot", world.now),
            meta=meta,
        )
    )
    snapshot.sign(signers(world, "snapshot"))
    timestamp = Metadata(
        Timestamp(
            version=state.timestamp.signed.version + 1,
            expires=expiry_of("timestamp", world.now),
            snapshot_meta=MetaFile.from_data(
                snapshot.signed.version, snapshot.to_bytes(), ["sha256"]
            ),
        )
    )
    timestamp.sign(signers(world, "timestamp"))
    messages |= {"snapshot.json": snapshot.to_bytes(), "timestamp.json": timestamp.to_bytes()}
    for name, content in messages.items():
        device.hear(name, content)


def test_both_online_keys_together_release_nothing(device: TrustingDevice, shelf: Shelf) -> None:
    lie = device.world.repository.draft("releases")
    lie.signed.targets[target_path(shelf.arm.ref)] = list_release(
        shelf.arm.ref, read_manifest(shelf.arm)
    )
    lie.sign(signers(device.world, "snapshot"))
    forge(device, {"releases.json": lie})
    assert device.trust.trouble
    device.hear("desired", word(device.world, "cam-1", wants(shelf.arm, sequence=6)))
    assert device.installs == [("tiny", 1)]
    device.world.rotate("timestamp")
    device.world.rotate("snapshot")
    updates_as_if_nothing_had_been(device, shelf, 7)


def test_both_online_keys_together_do_not_bring_back_what_was_withdrawn(
    device: TrustingDevice, shelf: Shelf
) -> None:
    world = device.world
    old = Metadata[Targets].from_bytes(world.repository.messages()["releases.json"])
    world.repository.withdraw(shelf.two.ref)
    device.hear_metadata()
    forge(device, {"releases.json": old})
    device.hear("desired", word(world, "cam-1", wants(shelf.two, sequence=6)))
    assert device.installs == [("tiny", 1)]


def test_a_foreign_root_is_not_followed(
    device: TrustingDevice, shelf: Shelf, tmp_path: Path
) -> None:
    foreign = RepositoryWorld(tmp_path / "foreign")
    foreign.rotate("root")
    foreign.publish(shelf.arm)
    device.hear_metadata()
    other = foreign.metadata("2.root.json")
    other.signatures.clear()
    other.sign(FOREIGN)
    device.hear("2.root.json", other.to_bytes())
    assert device.trust.reported.root == 1
    updates_as_if_nothing_had_been(device, shelf)

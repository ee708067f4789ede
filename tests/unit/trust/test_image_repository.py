"""The fleet's side: who may release what, who must sign, and what stays signed by itself."""

import re
from hashlib import sha256
from pathlib import Path

import pytest
from msgspec.structs import replace

from edgepack.bundle.keys import generate_key, load_private_key, load_public_key, write_key_pair
from edgepack.errors import FleetError
from edgepack.fleet.client.publishing import next_metadata
from edgepack.fleet.documents.releases import SignedMetadata
from edgepack.fleet.releases.listing import show_publishing, take_metadata
from edgepack.fleet.repository import ceremony
from edgepack.fleet.repository.keyring import KeyRing, KeySigner, make_key, tuf_key
from edgepack.fleet.repository.lifetimes import DAY_S
from edgepack.fleet.repository.repository import ImageRepository
from edgepack.fleet.repository.state import sign
from edgepack.trust.listing import list_release, read_listing, target_path
from edgepack.trust.repository import TrustedRepository
from edgepack.trust.roles import ROOT, SNAPSHOT, TARGETS, TIMESTAMP
from edgepack.trust.sources import FolderSource
from tests.simulators.bundles import ExampleBundle
from tests.simulators.repository import START, MemoryCache, RepositoryWorld, read_manifest
from tests.unit.trust.conftest import Shelf


def device(world: RepositoryWorld) -> TrustedRepository:
    return TrustedRepository(world.root, MemoryCache(), wall=lambda: world.now)


def refreshed(world: RepositoryWorld) -> TrustedRepository:
    found = device(world)
    found.refresh(source(world))
    return found


def source(world: RepositoryWorld) -> FolderSource:
    return FolderSource(world.repository.files.folder)


def publisher_key(folder: Path, name: str) -> Path:
    private, _ = write_key_pair(generate_key(), folder / name)
    return private


def add_vision(world: RepositoryWorld, keys: list[Path], threshold: int = 1) -> None:
    ceremony.add_publisher(
        world.repository,
        "releases-vision",
        world.now,
        keys=[tuf_key(load_public_key(path.with_suffix(".pub"))) for path in keys],
        models=("ocr-*",),
        threshold=threshold,
    )


def sign_release(world: RepositoryWorld, bundle: ExampleBundle, *keys: Path) -> bool:
    """What `edgepack publish BUNDLE --key KEY` does."""
    view = show_publishing(world.repository, bundle.ref)
    target = list_release(bundle.ref, read_manifest(bundle))
    draft = next_metadata(view, target_path(bundle.ref), target, world.now)
    for key in keys:
        draft.sign(KeySigner(load_private_key(key)), append=True)
    signed = SignedMetadata(role=view.role, metadata=draft.to_bytes().decode())
    return take_metadata(world.repository, signed).is_accepted


def test_a_release_is_listed_with_digest_counter_model_and_hardware(
    world: RepositoryWorld, shelf: Shelf
) -> None:
    world.publish(shelf.arm)
    target = refreshed(world).find(target_path(shelf.arm.ref), source(world))
    assert target is not None
    assert target.hashes == {"sha256": shelf.arm.ref.digest}
    listed = read_listing(target)
    assert listed.bundle == shelf.arm.ref
    assert listed.arch == ("aarch64",)


def test_a_withdrawn_release_is_listed_no_more(world: RepositoryWorld, shelf: Shelf) -> None:
    world.publish(shelf.one)
    world.publish(shelf.two)
    assert world.repository.withdraw(shelf.one.ref)
    found = refreshed(world)
    assert found.find(target_path(shelf.one.ref), source(world)) is None
    assert found.find(target_path(shelf.two.ref), source(world)) is not None


def test_no_publishers_key_releases_another_publishers_model(
    world: RepositoryWorld, shelf: Shelf, tmp_path: Path
) -> None:
    team = publisher_key(tmp_path, "vision")
    add_vision(world, [team])
    assert sign_release(world, shelf.other, team)
    draft = world.repository.draft("releases-vision")
    draft.signed.targets[target_path(shelf.one.ref)] = list_release(
        shelf.one.ref, read_manifest(shelf.one)
    )
    draft.sign(KeySigner(load_private_key(team)))
    with pytest.raises(FleetError, match="'releases-vision' may not release the model 'tiny'"):
        world.repository.take("releases-vision", draft)


def test_what_the_general_publisher_lists_of_another_publishers_model_is_not_asked(
    world: RepositoryWorld, shelf: Shelf, tmp_path: Path
) -> None:
    world.publish(shelf.other)
    assert refreshed(world).find(target_path(shelf.other.ref), source(world)) is not None
    team = publisher_key(tmp_path, "vision")
    add_vision(world, [team])
    assert not world.repository.is_listed(shelf.other.ref)
    assert sign_release(world, shelf.other, team)
    assert refreshed(world).find(target_path(shelf.other.ref), source(world)) is not None


def test_a_release_waits_until_as_many_keys_have_signed_it_as_must(
    world: RepositoryWorld, shelf: Shelf, tmp_path: Path
) -> None:
    first, second = publisher_key(tmp_path, "first"), publisher_key(tmp_path, "second")
    add_vision(world, [first, second], threshold=2)
    assert not sign_release(world, shelf.other, first)
    assert not world.repository.is_listed(shelf.other.ref)
    assert sign_release(world, shelf.other, second)
    assert world.repository.is_listed(shelf.other.ref)


def test_a_foreign_key_signs_nothing(world: RepositoryWorld, shelf: Shelf, tmp_path: Path) -> None:
    foreign = publisher_key(tmp_path, "foreign")
    with pytest.raises(FleetError, match="no key of 'releases' has signed this"):
        sign_release(world, shelf.one, foreign)


def test_another_change_that_waits_is_not_signed_along(
    world: RepositoryWorld, shelf: Shelf, tmp_path: Path
) -> None:
    keys = [publisher_key(tmp_path, "first"), publisher_key(tmp_path, "second")]
    add_vision(world, keys, threshold=2)
    assert not sign_release(world, shelf.other, keys[0])
    view = show_publishing(world.repository, shelf.other.ref)
    with pytest.raises(FleetError, match="another change of 'releases-vision' waits"):
        next_metadata(view, target_path(shelf.other.ref), None, world.now)


def test_metadata_of_another_version_or_with_delegations_is_refused(
    world: RepositoryWorld, shelf: Shelf
) -> None:
    draft = world.repository.draft("releases")
    draft.signed.version += 1
    with pytest.raises(FleetError, match="is version 3, the next one is 2"):
        world.repository.take("releases", draft)
    draft = world.repository.draft("releases")
    draft.signed.delegations = world.repository.state.targets.signed.delegations
    with pytest.raises(FleetError, match="'releases' may not delegate"):
        world.repository.take("releases", draft)


def test_where_the_publishers_key_is_not_within_reach_nothing_is_listed(
    world: RepositoryWorld, shelf: Shelf, tmp_path: Path
) -> None:
    world.repository.offline.rename(tmp_path / "stick")
    assert not world.repository.publish(shelf.one.ref, read_manifest(shelf.one))
    assert world.repository.keys_at_hand() == ()
    with_stick = ImageRepository(world.repository.folder, offline=tmp_path / "stick")
    assert with_stick.publish(shelf.one.ref, read_manifest(shelf.one))
    assert world.repository.is_listed(shelf.one.ref)  # It sees that somebody else has written.


def test_what_is_online_is_signed_anew_before_it_expires(world: RepositoryWorld) -> None:
    found = refreshed(world)
    for _ in range(40):
        world.now += 1.4 * DAY_S
        world.repository.renew()
        found.refresh(source(world))
    assert found.is_whole
    # Years later all that the fleet holds keys of is fresh, and the root is said to be due.
    world.now = START + 350 * DAY_S
    world.repository.renew()
    found.refresh(source(world))
    assert any("'root' expires in 15 days" in one for one in world.repository.warnings())
    ceremony.renew(world.repository, ROOT, world.now)
    assert world.repository.warnings() == ()


def test_a_crash_between_two_writes_leaves_what_was_before(
    world: RepositoryWorld, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.publish(shelf.one)
    save = world.repository.files.save

    def crash(role: str, content: bytes, version: int | None) -> None:
        if role == TIMESTAMP:
            raise OSError("power cut")
        save(role, content, version)

    monkeypatch.setattr(world.repository.files, "save", crash)
    with pytest.raises(OSError, match="power cut"):
        world.publish(shelf.two)
    monkeypatch.undo()
    again = RepositoryWorld(world.repository.folder)
    assert again.repository.is_listed(shelf.one.ref)
    assert refreshed(again).find(target_path(shelf.one.ref), source(again)) is not None
    again.publish(shelf.two)
    found = refreshed(again)
    assert found.find(target_path(shelf.one.ref), source(again)) is not None
    assert found.find(target_path(shelf.two.ref), source(again)) is not None


def test_the_root_needs_as_many_keys_as_it_says(tmp_path: Path) -> None:
    repository = ImageRepository(tmp_path / "tuf", wall=lambda: START)
    ceremony.init(repository, START, root_keys=3, root_threshold=2)
    keys = repository.state.keys(ROOT)
    paths = KeyRing((repository.offline,)).paths()
    for key in keys[:2]:
        paths[key.keyid].rename(paths[key.keyid].with_suffix(".lost"))
    alone = ImageRepository(tmp_path / "tuf", wall=lambda: START)
    with pytest.raises(FleetError, match="2 of 3 keys of 'root' must sign"):
        ceremony.renew(alone, ROOT, START)
    lost = paths[keys[0].keyid]
    lost.with_suffix(".lost").rename(lost)
    ceremony.renew(ImageRepository(tmp_path / "tuf", wall=lambda: START), ROOT, START)
    assert alone.state.root.signed.version == 2


@pytest.mark.parametrize("role", [ROOT, TIMESTAMP, SNAPSHOT, TARGETS, "releases", "director"])
def test_devices_follow_when_a_role_gets_new_keys(
    world: RepositoryWorld, shelf: Shelf, role: str
) -> None:
    world.publish(shelf.one)
    found = refreshed(world)
    old = {key.keyid for key in world.repository.state.keys(role)}
    world.rotate(role)
    assert not old & {key.keyid for key in world.repository.state.keys(role)}
    found.refresh(source(world))
    assert found.find(target_path(shelf.one.ref), source(world)) is not None
    world.publish(shelf.two)
    found.refresh(source(world))
    assert found.find(target_path(shelf.two.ref), source(world)) is not None


def test_keys_are_not_taken_away_below_the_threshold(world: RepositoryWorld) -> None:
    (key,) = world.repository.state.keys(ROOT)
    with pytest.raises(FleetError, match="'root' would have 0 keys, of which 1 must sign"):
        ceremony.change_keys(world.repository, ROOT, world.now, remove=[key.keyid])
    with pytest.raises(FleetError, match="'root' has no key 'abc'"):
        ceremony.change_keys(world.repository, ROOT, world.now, remove=["abc"])
    with pytest.raises(FleetError, match="there is no role 'rooot'"):
        ceremony.change_keys(world.repository, "rooot", world.now, threshold=1)
    new = make_key(world.repository.offline, ROOT, is_offline=False)
    ceremony.change_keys(world.repository, ROOT, world.now, add=[new], threshold=2)
    ceremony.renew(world.repository, ROOT, world.now)
    found = refreshed(world)
    assert found.root_version == 3


def test_metadata_is_made_once(world: RepositoryWorld) -> None:
    with pytest.raises(FleetError, match="has its metadata already"):
        ceremony.init(world.repository, world.now)


def test_a_publishers_list_that_is_full_is_told_before_and_refuses_what_is_too_much(
    world: RepositoryWorld, shelf: Shelf
) -> None:
    repository, manifest = world.repository, read_manifest(shelf.one)

    def accept(first: int, count: int) -> None:
        draft = repository.draft("releases")
        for number in range(first, first + count):
            digest = sha256(str(number).encode()).hexdigest()
            bundle = replace(shelf.one.ref, version=f"1.{number}.0", release=number, digest=digest)
            draft.signed.targets[target_path(bundle)] = list_release(bundle, manifest)
        key_ids = repository.state.delegations()["releases"].keyids
        sign(draft, repository.keys.signers(key_ids))
        repository.accept("releases", draft)

    accept(1, 200)
    assert repository.warnings() == ()
    accept(201, 110)
    (warning,) = repository.warnings()
    assert re.fullmatch(
        r"'releases' lists 310 releases, and is \d\d% full: edgepack fleet releases prune", warning
    )
    newest = list(repository.state.publishers["releases"].signed.targets)[-1]
    assert refreshed(world).find(newest, source(world)) is not None
    before = repository.files.versions("releases")
    with pytest.raises(FleetError, match="is the most that one message carries") as caught:
        accept(311, 100)
    assert "edgepack fleet releases prune" in str(caught.value)
    assert repository.files.versions("releases") == before
    assert refreshed(world).find(newest, source(world)) is not None

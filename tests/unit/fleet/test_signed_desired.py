"""Orders signed by the controller, and metadata for devices without metadata."""

import json
import time

import pytest
from msgspec.structs import replace
from tuf.api.metadata import Metadata

from edgepack.errors import FleetError
from edgepack.fleet.controller import metadata
from edgepack.trust.orders import verify_orders
from edgepack.wire import topics
from edgepack.wire.orders import MAX_STEP
from edgepack.wire.reports import Trusted
from tests.unit.fleet.world import World, says


def test_a_device_is_told_the_same_unsigned_and_signed(world: World) -> None:
    world.enroll("a")
    world.start()
    world.look()
    topic, payload = world.published[-1]
    assert topic == topics.desired("t", "a")
    (told,) = world.told("a")
    state = world.repository.state
    signed = verify_orders(payload, state.targets.signed, tenant="t", device="a")
    assert signed.desired.models == told.models
    assert signed.desired.sequence == told.sequence == 1
    assert 6 < (signed.expires_at - time.time()) / 86400 < 7.01
    assert Metadata.from_bytes(payload).signed.version == 1


def test_what_is_taken_away_is_taken_away_unsigned(world: World) -> None:
    assert world.controller_sign("a", b"") == b""


def test_a_device_that_lacks_metadata_is_sent_it_alone_and_not_over_and_over(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.enroll("a")
    world.look()
    lacking = replace(says("IDLE"), trust=Trusted(root=1))
    world.hear("a", lacking)
    topic = topics.device_metadata("t", "a", "")
    names = ["targets.json", "releases.json", "snapshot.json", "timestamp.json"]
    assert [sent for sent, _ in world.sent] == [topic + name for name in names]
    world.hear("a", lacking)
    assert len(world.sent) == 4
    monkeypatch.setattr(metadata, "ANSWER_AGAIN_AFTER_S", 0.0)
    world.hear("a", lacking)
    assert len(world.sent) == 8


def test_a_device_that_has_all_metadata_is_sent_none(world: World) -> None:
    world.enroll("a")
    world.look()
    state = world.repository.state
    newest = Trusted(root=1, timestamp=state.timestamp.signed.version, is_whole=True)
    world.hear("a", replace(says("IDLE"), trust=newest))
    assert world.sent == []
    world.hear("a", replace(says("IDLE"), trust=replace(newest, is_whole=False)))
    assert len(world.sent) == 4


def test_numbers_go_on_above_the_directors_word_that_a_device_accepted(world: World) -> None:
    world.enroll("a")
    world.hear("a", replace(says("IDLE"), trust=Trusted(root=1, director=41)))
    world.start()
    world.look()
    assert world.told("a")[-1].sequence == 42
    world.hear("a", replace(says("IDLE"), trust=Trusted(root=1, director=2 + 42 + MAX_STEP)))
    assert world.inbox.counters["malformed"] == 1


def test_without_the_directors_key_nothing_is_said_as_if_it_were_signed(world: World) -> None:
    world.enroll("a")
    for path in world.repository.online.glob("director.*"):
        path.unlink()
    with pytest.raises(FleetError, match="the director's key is not here"):
        world.controller_sign("a", json.dumps({"v": 1, "sequence": 1, "models": {}}).encode())

"""Samples in the fleet: asked for, verified, bounded and counted before anything is stored."""

import contextlib
import hashlib
import time
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from msgspec.structs import replace
from sqlalchemy import func, select

from edgepack.agent.enrolment.identity import make_key
from edgepack.bundle.keys import generate_key, write_key_pair
from edgepack.bundle.plain_arrays import encode_arrays
from edgepack.bundle.sealed_samples import sample_place, seal_sample
from edgepack.errors import FleetError
from edgepack.fleet.client.samples import SampleMethods
from edgepack.fleet.commands.samples import capture
from edgepack.fleet.controller.quotas import QUOTAS, Quota
from edgepack.fleet.database import devices, enrolment, samples, unsent
from edgepack.fleet.database.schema import DeviceRow, SamplePieceRow, SampleRow
from edgepack.fleet.documents.rollouts import Selector
from edgepack.fleet.documents.samples import (
    CaptureRequest,
    CaptureView,
    SampleView,
    SealedSample,
)
from edgepack.wire import topics
from edgepack.wire.messages import decode
from edgepack.wire.reports import CaptureReport, Reported
from edgepack.wire.transfers import PIECE_BYTES, Piece, Taken
from tests.simulators.signing import RawSigner, sign_with
from tests.unit.fleet.world import NEW, OLD, World, says

PUBLIC = generate_key().public_pem.decode()
CONTENT = bytes(range(256)) * 700
"""Three pieces."""


def ask(
    world: World, *names: str, total: int = 4, valid_s: float = 1e9, collect_s: float = 30.0
) -> CaptureView:
    """Ask devices that serve a release."""
    for name in names:
        with contextlib.suppress(FleetError):
            world.enroll(name)
        world.hear(name, says("COMMITTED", active=OLD))
    request = CaptureRequest(
        model=OLD.name,
        selector=Selector(kind="all"),
        samples=total,
        of=("drift", "doubt"),
        recipient=PUBLIC,
        valid_s=valid_s,
        collect_s=collect_s,
    )
    with world.store.transaction("ann") as session:
        row, publications = samples.begin(session, request, names, world.store.now())
        unsent.add(session, publications)
        view = samples.show_capture(session, row, world.store.now())
    world.look()
    return view


def pieces(whole: bytes = CONTENT, /, **changes: object) -> list[Piece]:
    found = [
        Piece(
            request="s1",
            model=OLD.name,
            sample=hashlib.sha256(whole).hexdigest(),
            reason="drift",
            size_bytes=len(whole),
            index=index,
            content=whole[index * PIECE_BYTES : (index + 1) * PIECE_BYTES],
        )
        for index in range(-(-len(whole) // PIECE_BYTES))
    ]
    return [replace(one, **changes) for one in found]


def send(world: World, device: str, *sent: Piece) -> Taken:
    """Deliver pieces, and return the last answer."""
    world.sent.clear()
    for one in sent:
        world.hear(device, one, "sample")
    topic = topics.samples_taken("t", device)
    answers = [decode(payload, Taken) for found, payload in world.sent if found == topic]
    return answers[-1] if answers else Taken()


def stored(world: World) -> dict[tuple[str, str], bytes]:
    """Return the complete samples, by device and digest."""
    with world.store.reading() as session:
        rows = session.scalars(select(SampleRow).where(SampleRow.is_whole.is_(True)))
        return {(row.device, row.sample): samples.content_of(session, row) for row in rows}


def piece_count(world: World) -> int:
    with world.store.reading() as session:
        return session.scalar(select(func.count()).select_from(SamplePieceRow)) or 0


def test_a_request_is_signed_kept_through_rollouts_and_counted(world: World) -> None:
    view = ask(world, "cam-1", "cam-2", total=5)
    assert (view.capture, view.share) == ("s1", 3)
    order = world.told("cam-1")[-1].captures[OLD.name]
    assert (order.request, order.samples, order.of) == ("s1", 3, ("drift", "doubt"))
    world.start()
    world.look()
    last = world.told("cam-1")[-1]
    assert last.models
    assert last.captures == {OLD.name: order}
    with world.store.transaction() as session:
        row = session.get_one(DeviceRow, "cam-1")
        publication = devices.tell_nothing(row, OLD.name, order.expires_at + 1)
        assert b'"captures":{}' in publication.payload, "an expired request is not repeated"


def test_samples_are_stored_once_whatever_comes_twice(world: World) -> None:
    ask(world, "cam-1")
    first, second, third = pieces()
    digest = first.sample
    assert send(world, "cam-1", first).pieces == {digest: 1}
    assert send(world, "cam-1", first, first).pieces == {digest: 1}
    assert send(world, "cam-1", third).pieces == {digest: 1}, "pieces come in order"
    assert stored(world) == {}
    assert send(world, "cam-1", second, third).pieces == {digest: 3}
    assert send(world, "cam-1", first).pieces == {digest: 3}
    assert stored(world) == {("cam-1", digest): CONTENT}
    again = world.reopened()
    assert stored(again) == {("cam-1", digest): CONTENT}
    again.store.close()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"request": "s2"}, "did not request"),
        ({"request": "r1"}, "did not request"),
        ({"model": "other"}, "did not request"),
        ({"reason": "shadow"}, "did not request"),
        ({"content": b"x"}, "wrong length"),
        ({"size_bytes": 5}, "wrong length"),
        ({"sample": "0" * 64}, "digest"),
    ],
)
def test_pieces_that_were_not_asked_for_or_do_not_fit_are_refused(
    world: World, changes: dict[str, object], words: str
) -> None:
    ask(world, "cam-1")
    answer = send(world, "cam-1", *pieces(**changes))
    assert [words in because for because in answer.refused.values()] == [True]
    assert answer.pieces == {}
    assert stored(world) == {}
    assert piece_count(world) == 0
    assert world.inbox.counters["samples_refused"] >= 1
    assert world.inbox.quotas.dropped("cam-1")["sample refused"] >= 1
    if words in ("wrong length", "digest"):
        refused = send(world, "cam-1", *pieces(**changes)).refused
        assert list(refused) == list(answer.refused), "it does not begin again"


def test_a_device_that_was_not_asked_stores_nothing(world: World) -> None:
    ask(world, "cam-1")
    world.enroll("cam-2")
    answer = send(world, "cam-2", *pieces())
    assert "this device" in next(iter(answer.refused.values()))
    assert stored(world) == {}


def test_a_flood_fills_the_share_and_no_more(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(QUOTAS, "sample", Quota(50, 0.0))
    ask(world, "cam-1", total=3)
    for number in range(12):
        answer = send(world, "cam-1", *pieces(bytes([number]) * 100))
    assert "3 samples" in next(iter(answer.refused.values()))
    assert len(stored(world)) == 3
    for number in range(80):
        one = pieces(number.to_bytes(2) * 100)[0]
        world.receive("cam-1", one, "sample")
    world.controller.turn()
    assert world.inbox.counters["over_quota"] == 80 - 38
    assert len(stored(world)) == 3


def test_a_request_leaves_time_to_upload(world: World) -> None:
    with pytest.raises(FleetError, match=r"60 s.*ends after 60 s"):
        ask(world, "cam-1", valid_s=60.0, collect_s=60.0)
    with world.store.reading() as session:
        assert samples.list_captures(session, OLD.name, 1.0) == ()


def test_an_expired_request_takes_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    ask(world, "cam-1", valid_s=5.0, collect_s=1.0)
    send(world, "cam-1", pieces()[0], *pieces(b"whole"))
    now = time.time()
    monkeypatch.setattr(world.store, "now", lambda: now + 60)
    answer = send(world, "cam-1", *pieces(b"new"))
    assert list(answer.refused.values()) == ["the request has expired"]
    with world.store.transaction() as session:
        samples.forget_old(session, now + 60)
    assert piece_count(world) == 1, "the incomplete sample is gone"
    with world.store.transaction() as session:
        samples.forget_old(session, now + 60 + samples.KEEP_S)
    assert piece_count(world) == 0
    with world.store.reading() as session:
        assert samples.list_captures(session, OLD.name, now) == ()


def test_all_samples_together_are_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "MAX_STORED_BYTES", len(CONTENT) + 10)
    ask(world, "cam-1")
    send(world, "cam-1", *pieces())
    answer = send(world, "cam-1", *pieces(b"a" * 20))
    assert "samples at most" in next(iter(answer.refused.values()))
    assert len(stored(world)) == 1


def test_a_forged_or_recorded_piece_changes_nothing(world: World) -> None:
    ask(world, "cam-1")
    (piece,) = pieces(b"one")
    topic = topics.up("t", "cam-1", "sample")
    signer = world.signer("cam-1")
    forged = RawSigner(tenant="t", device="cam-1", boot="b1", sign=sign_with(make_key()))
    forged.word = signer.word
    recorded = world.payload("cam-1", piece, "sample")
    of_another = world.payload("cam-1", piece, "sample").replace(b'"cam-1"', b'"cam-2"')
    for payload in (forged.sign_raw("sample", b"{}"), of_another, b"", b"{}", b"\xff" * 100):
        world.inbox.receive(topic, payload)
        world.controller.turn()
    assert stored(world) == {}
    world.hear("cam-1", says("COMMITTED", active=OLD, boot="b2"))
    world.inbox.receive(topic, recorded)
    world.controller.turn()
    assert stored(world) == {}, "it belongs to an earlier session"


def test_the_view_has_the_state_of_each_device(world: World) -> None:
    ask(world, "cam-1", "cam-2", "cam-3")
    send(world, "cam-1", *pieces(b"one"))

    def reports(device: str, state: str, because: str = "") -> None:
        report: Reported = says("COMMITTED", active=OLD)
        told = CaptureReport(request="s1", state=state, because=because, kept=2, dropped=1)
        model = replace(report.models[OLD.name], capture=told)
        world.hear(device, replace(report, models={OLD.name: model}))

    reports("cam-1", "DONE")
    reports("cam-2", "REFUSED", "no consent")
    with world.store.reading() as session:
        (view,) = samples.list_captures(session, OLD.name, 1.0)
    assert [(one.device, one.state, one.received) for one in view.devices] == [
        ("cam-1", "DONE", 1),
        ("cam-2", "REFUSED", 0),
        ("cam-3", "", 0),
    ]
    assert not view.is_over


def test_a_later_request_and_the_expiry_end_a_request(world: World) -> None:
    ask(world, "cam-1", "cam-2")
    ask(world, "cam-1")
    with world.store.reading() as session:
        later, first = samples.list_captures(session, OLD.name, 1.0)
        expired = samples.list_captures(session, OLD.name, 1e12)
    assert [(one.device, one.state, one.because) for one in first.devices] == [
        ("cam-1", "ENDED", "s2 replaced this request"),
        ("cam-2", "", ""),
    ]
    assert [one.state for one in later.devices] == [""]
    assert not first.is_over
    assert all(one.is_over for one in expired)
    assert [one.because for one in expired[1].devices][1] == "the request expired"


def test_nobody_waits_for_a_removed_device(world: World) -> None:
    ask(world, "cam-1")
    with world.store.transaction("ann") as session:
        row = session.get(DeviceRow, "cam-1")
        assert row is not None
        unsent.add(session, enrolment.remove(session, [row], world.store.now()))
    with world.store.reading() as session:
        (view,) = samples.list_captures(session, OLD.name, 1.0)
    assert [(one.state, one.because) for one in view.devices] == [
        ("ENDED", "the device was removed")
    ]
    assert view.is_over


def test_removed_samples_are_gone_and_do_not_come_again(world: World) -> None:
    ask(world, "cam-1")
    send(world, "cam-1", *pieces())
    with world.store.transaction("ann") as session:
        assert samples.remove(session, OLD.name, 1.0) == 1
    assert piece_count(world) == 0
    assert list(send(world, "cam-1", *pieces()).refused.values()) == ["removed"]
    with world.store.reading() as session:
        assert samples.list_samples(session, OLD.name, "", 10) == ()
        with pytest.raises(FleetError, match="no sample"):
            samples.find(session, OLD.name, "cam-1", pieces()[0].sample)


def test_pages_list_each_sample_once(world: World) -> None:
    ask(world, "cam-1", "cam-2", total=20)
    for number in range(5):
        for device in ("cam-1", "cam-2"):
            send(world, device, *pieces(bytes([number]) * 10))
    found: list[SampleView] = []
    after = ""
    with world.store.reading() as session:
        while page := samples.list_samples(session, OLD.name, after, 3):
            found += page
            after = f"{page[-1].device}/{page[-1].sample}"
    assert len({(one.device, one.sample) for one in found}) == len(found) == 10
    assert {one.capture for one in found} == {"s1"}
    assert NEW.name == OLD.name


class Sealed(SampleMethods):
    """A client of a fleet that has one sample."""

    def __init__(self, content: bytes) -> None:
        self._connection = self  # type: ignore[assignment]
        self._content = content

    def pages(self, *_: object, **__: object) -> list[SampleView]:
        view = SampleView(
            device="cam-1", sample="00", capture="s1", reason="drift", size_bytes=1, received_at=0.0
        )
        return [view]

    def get(self, *_: object) -> SealedSample:
        return SealedSample(tenant="t", content=self._content)


def test_a_wrong_key_is_an_error_that_leaves_the_folder_usable(tmp_path: Path) -> None:
    keys = [write_key_pair(generate_key(), tmp_path / name) for name in ("own", "other")]
    plain = encode_arrays({"x": np.zeros(3, np.float32)})
    place = sample_place("t", "cam-1", "digits", "s1")
    client = Sealed(seal_sample(plain, keys[0][1].read_text(), place))
    with pytest.raises(FleetError, match=r"none of 1 sample of 'digits' can be read with this key"):
        client.pull_samples("digits", tmp_path / "pulled", keys[1][0])
    pulled = client.pull_samples("digits", tmp_path / "pulled", keys[0][0])
    assert (pulled.samples, pulled.unreadable) == (1, 0)
    assert [path.name for path in (tmp_path / "pulled").iterdir()] == ["00000-cam-1.npz"]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_sample_that_would_end_the_build_is_left_out(tmp_path: Path, value: float) -> None:
    private, public = write_key_pair(generate_key(), tmp_path / "own")
    plain = encode_arrays({"x": np.array([0, value], np.float32)})
    place = sample_place("t", "cam-1", "digits", "s1")
    client = Sealed(seal_sample(plain, public.read_text(), place))
    with pytest.raises(FleetError, match=r"none of 1 sample of 'digits' can be read"):
        client.pull_samples("digits", tmp_path / "pulled", private)
    assert not list((tmp_path / "pulled").iterdir())


def test_an_unknown_reason_is_named(tmp_path: Path) -> None:
    words = ["ocr", "--of", "drift,secrets", "--data", str(tmp_path)]
    done = CliRunner().invoke(capture, words)
    assert done.exit_code == 2
    assert "'secrets' is none of drift, doubt, shadow" in done.output

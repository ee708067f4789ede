"""Requested samples on the device: consent, signature, quota, pieces, and what a kill leaves."""

import errno
import hashlib
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from edgepack.agent.broker import samples
from edgepack.agent.broker.samples import RESEND_S, WINDOW, SampleUploader
from edgepack.agent.config import AgentConfig, CaptureConfig, TrustConfig
from edgepack.agent.state.captured import (
    CaptureSettings,
    captured_folder,
    keep_content,
    read_capture,
    sealed_pool,
)
from edgepack.agent.state.uploads import uploads_file
from edgepack.bundle.keys import generate_key
from edgepack.wire.orders import CaptureOrder
from edgepack.wire.reports import CaptureReport
from edgepack.wire.transfers import PIECE_BYTES, Piece, Taken

PUBLIC = generate_key().public_pem.decode()


def order(**changes: object) -> CaptureOrder:
    asked: dict[str, object] = {
        "request": "r1",
        "samples": 8,
        "of": ("drift", "doubt"),
        "recipient": PUBLIC,
        "collect_s": 60.0,
        "expires_at": 10_000.0,
    }
    return CaptureOrder(**(asked | changes))  # type: ignore[arg-type]


@dataclass
class Device:
    """An uploader with a clock, and a fleet that stores pieces in order."""

    state_dir: Path
    capture: CaptureConfig = field(default_factory=lambda: CaptureConfig(upload=True))
    now: float = 1000.0
    has: dict[str, bytes] = field(default_factory=dict)
    sent_bytes: int = 0

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        config = AgentConfig(
            device="cam-1",
            state_dir=str(self.state_dir),
            trust=TrustConfig(keys=()),
            capture=self.capture,
        )
        self.uploader = SampleUploader(config, wall=lambda: self.now, monotonic=lambda: self.now)

    def take(self, asked: CaptureOrder, *, is_signed: bool = True) -> None:
        self.uploader.take({"tiny": asked}, is_signed=is_signed)
        self.turn()

    def turn(self) -> tuple[Piece, ...]:
        self.now += samples.LOOK_S
        pieces = self.uploader.turn()
        self.sent_bytes += sum(len(piece.content) for piece in pieces)
        return pieces

    def deliver(self, pieces: tuple[Piece, ...]) -> Taken:
        """Store the pieces as a fleet does."""
        for piece in pieces:
            before = self.has.get(piece.sample, b"")
            if piece.index * PIECE_BYTES == len(before):
                self.has[piece.sample] = before + piece.content
        ids = {piece.sample for piece in pieces}
        return Taken(pieces={one: -(-len(self.has[one]) // PIECE_BYTES) for one in ids})

    def settle(self) -> None:
        for _ in range(60):
            self.uploader.note_taken(self.deliver(self.turn()))

    def put(self, *contents: bytes, reason: str = "drift") -> None:
        """Write samples as a serving process does."""
        settings = read_capture(self.state_dir)
        assert settings is not None
        pool = sealed_pool(settings, settings.requests["tiny"], reason)
        for number, content in enumerate(contents):
            assert keep_content(self.state_dir, "tiny", content, pool, number) is not None

    @property
    def report(self) -> CaptureReport:
        return self.uploader.reports["tiny"]

    @property
    def files(self) -> list[Path]:
        return sorted(captured_folder(self.state_dir).glob("*.sealed"))


@pytest.fixture
def device(tmp_path: Path) -> Device:
    return Device(tmp_path)


def sample(number: int, size: int = 1000) -> bytes:
    return bytes([number]) * size


def test_without_consent_the_device_refuses_and_says_so(tmp_path: Path) -> None:
    device = Device(tmp_path, CaptureConfig())
    device.take(order())
    assert device.report.state == "REFUSED"
    assert "[capture] upload" in device.report.because
    assert not captured_folder(tmp_path).exists()
    assert CaptureConfig().upload is False


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"expires_at": 999.0}, "expired"),
        ({"recipient": "no key"}, "cannot be encrypted"),
        ({"of": ("secrets",)}, "drift, doubt, shadow"),
        ({"of": ("drift", "drift")}, "drift, doubt, shadow"),
    ],
)
def test_a_request_that_cannot_hold_is_refused(
    device: Device, changes: dict[str, object], words: str
) -> None:
    device.take(order(**changes))
    assert device.report.state == "REFUSED"
    assert words in device.report.because
    assert read_capture(device.state_dir) is None


def test_an_unsigned_request_is_refused(device: Device) -> None:
    device.take(order(), is_signed=False)
    assert device.report.state == "REFUSED"
    assert "not signed" in device.report.because


def test_a_key_other_than_the_pinned_key_is_refused(tmp_path: Path) -> None:
    pinned = tmp_path / "samples.pub"
    pinned.write_text(PUBLIC)
    device = Device(tmp_path, CaptureConfig(upload=True, recipient=str(pinned)))
    device.take(order(recipient=generate_key().public_pem.decode()))
    assert device.report.state == "REFUSED"
    assert "[capture] recipient" in device.report.because
    device.take(order(request="r2"))
    assert device.report.state == "COLLECTING"


def test_samples_are_chosen_then_sent_then_deleted(device: Device) -> None:
    device.take(order())
    assert device.report.state == "COLLECTING"
    device.put(*(sample(n) for n in range(4)))
    assert device.turn() == (), "the choice is not over"
    assert device.report.kept == 4
    device.now += 60
    first = device.turn()
    assert [piece.content[0] for piece in first] == [3, 2, 1, 0], "the best first"
    assert {piece.reason for piece in first} == {"drift"}
    assert read_capture(device.state_dir) == CaptureSettings(
        samples=0,
        max_bytes=device.capture.max_bytes,
        disk_reserve_bytes=64 * 1024 * 1024,
        uploading=("r1",),
    ), "no process chooses any more"
    device.uploader.note_taken(device.deliver(first))
    assert device.files == []
    device.turn()
    assert (device.report.state, device.report.uploaded, device.report.kept) == ("DONE", 4, 0)
    for digest, content in device.has.items():
        assert hashlib.sha256(content).hexdigest() == digest
    device.take(order())
    device.restart()
    device.take(order())
    assert device.report.state == "DONE", "the same request is not carried out again"


@pytest.mark.parametrize("killed_after", range(6))
def test_a_kill_in_an_upload_loses_and_doubles_nothing(device: Device, killed_after: int) -> None:
    device.take(order())
    contents = [sample(n, PIECE_BYTES * 5 + n) for n in range(4)]
    device.put(*contents)
    device.now += 60
    for turn in range(6):
        pieces = device.turn()
        assert len(pieces) <= WINDOW
        taken = device.deliver(pieces[: len(pieces) // 2 + turn % 2])
        if turn == killed_after:
            device.restart()  # The acknowledgement is lost.
            device.take(order())
        else:
            device.uploader.note_taken(taken)
        device.now += RESEND_S
    device.settle()
    assert sorted(device.has.values()) == sorted(contents)
    assert device.files == []
    assert device.report.state == "DONE"


def test_a_day_sends_no_more_than_its_quota(tmp_path: Path) -> None:
    device = Device(tmp_path, CaptureConfig(upload=True, upload_bytes_per_day=2500))
    device.take(order())
    device.put(*(sample(n) for n in range(4)))
    device.now += 60
    device.settle()
    assert (len(device.has), device.sent_bytes) == (2, 2000)
    device.turn()
    assert "quota" in device.report.because
    device.restart()
    device.settle()
    assert device.sent_bytes == 2000, "a restart gives no new quota"
    device.uploader.take({"tiny": order(expires_at=10.0**6)}, is_signed=True)
    device.now = 24 * 3600.0 + 1
    device.settle()
    assert len(device.has) == 2, "the request had expired"
    assert device.report.because == "the request expired"


def test_a_sample_beyond_the_quota_of_a_day_holds_up_no_other(tmp_path: Path) -> None:
    device = Device(tmp_path, CaptureConfig(upload=True, upload_bytes_per_day=2500))
    device.take(order())
    device.put(sample(1), bytes(2501))
    device.now += 60
    device.settle()
    assert list(device.has.values()) == [sample(1)]
    assert (device.report.state, device.report.uploaded, device.report.dropped) == ("DONE", 1, 1)
    assert "more bytes than [capture] upload_bytes_per_day (2500)" in device.report.because
    assert device.files == []


def test_a_fleet_that_never_answers_gets_no_more_than_the_quota(tmp_path: Path) -> None:
    device = Device(tmp_path, CaptureConfig(upload=True, upload_bytes_per_day=3000))
    device.take(order())
    device.put(sample(1))
    device.now += 60
    for _ in range(100):
        device.turn()
        device.now += RESEND_S
    assert device.sent_bytes <= 4000


def test_a_refused_sample_is_deleted_and_counted(device: Device) -> None:
    device.take(order())
    device.put(sample(1), sample(2))
    device.now += 60
    (first, second) = device.turn()
    device.uploader.note_taken(Taken(refused={first.sample: "over quota"}))
    device.uploader.note_taken(device.deliver((second,)))
    device.turn()
    assert (device.report.state, device.report.uploaded, device.report.dropped) == ("DONE", 1, 1)
    assert "over quota" in device.report.because


def test_a_request_that_the_fleet_ends_leaves_nothing(device: Device) -> None:
    device.take(order())
    device.put(sample(1))
    device.uploader.take({}, is_signed=True)
    assert not captured_folder(device.state_dir).exists()
    assert device.turn() == ()
    assert device.uploader.reports == {}


def test_consent_that_was_withdrawn_ends_a_request(device: Device) -> None:
    device.take(order())
    device.put(sample(1))
    device.capture = CaptureConfig()
    device.restart()
    device.take(order())
    assert device.report.state == "REFUSED"
    device.now += 60
    assert device.turn() == ()
    assert not captured_folder(device.state_dir).exists()


def test_a_clock_that_goes_back_does_not_lengthen_the_choice(device: Device) -> None:
    device.take(order())
    device.put(sample(1))
    device.now -= 500
    device.uploader._look_at = 0.0
    assert len(device.turn()) == 1


def test_links_and_giants_in_the_folder_are_not_sent(device: Device) -> None:
    device.take(order())
    device.put(sample(1))
    folder = captured_folder(device.state_dir)
    (folder / f"{5:016x}-tiny.r1-drift.sealed").symlink_to("/etc/passwd")
    giant = folder / f"{6:016x}-tiny.r1-drift.sealed"
    with giant.open("wb") as file:
        file.truncate(17 * 1024 * 1024)
    device.now += 60
    assert [piece.content for piece in device.turn()] == [sample(1)]
    assert not giant.exists()


def test_a_damaged_file_of_requests_is_put_aside(device: Device) -> None:
    device.take(order())
    uploads_file(device.state_dir).path.write_bytes(b"{broken")
    device.restart()
    device.take(order())
    assert device.report.state == "COLLECTING"


def test_a_disk_that_fails_does_so_at_each_turn_until_it_works(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as failing:
        failing.setattr(device.uploader, "_load", fail)
        for _ in range(3):
            with pytest.raises(OSError, match="Input/output"):
                device.uploader.turn()
    assert device.turn() == ()

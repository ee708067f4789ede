"""Upload of samples that the fleet requested; the device's own settings must allow the upload.

1. A signed request is stored. Without consent the device refuses, and says so.
2. Serving processes choose and encrypt samples until the end of the choice
   (`edgepack.agent.serving.capture`).
3. The agent sends the encrypted samples piece by piece, the best first, within the day's quota. A
   sample is deleted after the fleet has all of its pieces. So a sample survives a killed agent, and
   the fleet, which knows a sample by its digest, stores the sample once.
"""

import errno
import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec

from edgepack.agent.config import AgentConfig
from edgepack.agent.state.captured import (
    CaptureSettings,
    Kept,
    captured_folder,
    dropped_samples,
    kept_samples,
    sealed_suffix,
    switch_capture,
)
from edgepack.agent.state.models import MODEL_NAME
from edgepack.agent.state.state_file import open_shared
from edgepack.agent.state.uploads import Upload, Uploads, uploads_file
from edgepack.bundle.keys import key_id, load_public_key, parse_public_key
from edgepack.bundle.sealed_samples import sample_place
from edgepack.errors import SignatureError
from edgepack.wire.orders import CAPTURE_REASONS, CaptureOrder
from edgepack.wire.reports import CaptureReport
from edgepack.wire.transfers import MAX_SAMPLE_BYTES, PIECE_BYTES, Piece, Taken

log = logging.getLogger(__name__)

WINDOW = 16
"""Pieces on their way, at most: 1 MiB."""
RESEND_S = 30.0
"""Pieces that the fleet does not acknowledge are sent again after this time."""
LOOK_S = 2.0
"""Seconds between two looks at the folder."""
MAX_REQUESTS = 64
_DAY_S = 24 * 3600
_ACTIVE = ("COLLECTING", "UPLOADING")
_NO_CONSENT = "the device's settings do not allow uploads ([capture] upload)"


class _Outgoing(msgspec.Struct, kw_only=True):
    """A sample on its way.

    Attributes:
        sample: Its digest.
        taken: Pieces that the fleet has.
        sent: Pieces that were sent.
        sent_at: Time of the last piece, monotonic clock.
    """

    model: str
    reason: str
    kept: Kept
    sample: str
    taken: int = 0
    sent: int = 0
    sent_at: float = 0.0

    @property
    def pieces(self) -> int:
        return -(-self.kept.size_bytes // PIECE_BYTES)


class SampleUploader:
    """Carries out the fleet's requests for samples.

    Args:
        config: The agent's settings.
        wall, monotonic: Clocks, seconds.

    Attributes:
        reports: State of each model's last request.
    """

    def __init__(
        self,
        config: AgentConfig,
        *,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config, self._wall, self._monotonic = config, wall, monotonic
        self._state_dir = Path(config.state_dir)
        self._file = uploads_file(self._state_dir)
        self._uploads: Uploads | None = None
        self._outgoing: dict[str, _Outgoing] = {}
        self._settings: CaptureSettings | None = None
        self._look_at = 0.0
        self._resent_bytes = 0
        self.reports: dict[str, CaptureReport] = {}

    def apply(self, config: AgentConfig) -> None:
        """Continue with reloaded settings, and let serving processes know.

        Raises:
            OSError: The state folder cannot be written; processes continue as before.
        """
        self._config = config
        self._save(self._load())

    def take(self, orders: Mapping[str, CaptureOrder], *, is_signed: bool) -> None:
        """Store new requests, and end requests that the fleet does not name any more.

        Args:
            orders: By model.
            is_signed: Whether the director signed the orders.

        Raises:
            OSError: The state folder cannot be written; the requests are as before.
        """
        known = self._load()
        models = {}
        for model, order in list(orders.items())[:MAX_REQUESTS]:
            before = known.models.get(model)
            is_known = before is not None and before.order.request == order.request
            models[model] = before if before and is_known else self._begin(model, order, is_signed)
        if models != known.models:
            self._save(msgspec.structs.replace(known, models=models))

    def _begin(self, model: str, order: CaptureOrder, is_signed: bool) -> Upload:
        now = self._wall()
        until = min(now + order.collect_s, order.expires_at)
        if because := self._refusal(model, order, now, is_signed):
            log.warning("model=%s request=%s refused because=%s", model, order.request, because)
            return Upload(order=order, until=until, state="REFUSED", because=because)
        log.info("model=%s request=%s samples=%d", model, order.request, order.samples)
        return Upload(order=order, until=until)

    def _refusal(self, model: str, order: CaptureOrder, now: float, is_signed: bool) -> str:
        """Return why the device does not carry out a request; "" if the device does."""
        if not is_signed:
            return "the request is not signed: the device has no root of trust"
        if not self._config.capture.upload:
            return _NO_CONSENT
        if now > order.expires_at:
            return "the request has expired"
        if not MODEL_NAME.fullmatch(model):
            return "the request names no model"
        if len(set(order.of)) != len(order.of) or not set(order.of) <= set(CAPTURE_REASONS):
            return f"the request has reasons other than {', '.join(CAPTURE_REASONS)}"
        try:
            key = parse_public_key(order.recipient.encode(), Path("recipient"))
            pinned = self._config.capture.recipient
            if pinned and key_id(key) != key_id(load_public_key(Path(pinned))):
                return "the request's key is not the key of [capture] recipient"
        except SignatureError as error:
            return f"samples cannot be encrypted: {error.problem} ({error.found_in})"
        return ""

    @property
    def is_active(self) -> bool:
        """True while a request is under way."""
        known = self._uploads.models.values() if self._uploads else ()
        return any(one.state in _ACTIVE for one in known)

    def turn(self) -> tuple[Piece, ...]:
        """Do all due work; return the pieces to send now.

        Raises:
            OSError: The state folder cannot be read or written.
        """
        now = self._monotonic()
        if now >= self._look_at:
            self._look()
            self._look_at = now + LOOK_S
        return tuple(self._pieces(now))

    def _look(self) -> None:
        """Move requests on, and choose the next samples to send."""
        uploads = self._load()
        wall = self._wall()
        day = int(wall // _DAY_S)
        before = uploads.sent_bytes if day == uploads.day else 0
        uploads = msgspec.structs.replace(uploads, day=day, sent_bytes=before + self._resent_bytes)
        self._resent_bytes = 0
        models, reports = {}, {}
        for model, upload in uploads.models.items():
            kept = list(self._kept(model, upload))
            changed, paused = self._moved(model, upload, wall, kept), ""
            if changed.state == "UPLOADING":
                changed, kept = self._without_too_large(changed, kept)
                uploads = self._fill(model, uploads, kept)
                is_sending = any(one.model == model for one in self._outgoing.values())
                if kept and not is_sending:
                    paused = (
                        f"the next sample ({kept[0][1].size_bytes} bytes) waits: of the quota of "
                        f"the day, {uploads.sent_bytes} of {self._quota_bytes} bytes are used"
                    )
            models[model] = changed
            reports[model] = self._report(model, changed, len(kept), paused)
        self.reports = reports
        changed_uploads = msgspec.structs.replace(uploads, models=models)
        if changed_uploads != self._uploads:
            self._save(changed_uploads)

    def _moved(
        self, model: str, upload: Upload, wall: float, kept: list[tuple[str, Kept]]
    ) -> Upload:
        """Return the next state of a request."""
        if upload.state not in _ACTIVE:
            return upload
        if not self._config.capture.upload:
            return msgspec.structs.replace(upload, state="REFUSED", because=_NO_CONSENT)
        is_over = wall > upload.order.expires_at
        # A clock that went back must not make a device choose for longer than requested.
        is_chosen = not wall < upload.until <= wall + upload.order.collect_s
        if upload.state == "COLLECTING" and (is_chosen or is_over):
            return msgspec.structs.replace(upload, state="UPLOADING")
        if upload.state == "UPLOADING" and (is_over or not kept):
            dropped = dropped_samples(self._state_dir, model, upload.order.request)
            because = "the request expired" if is_over and kept else dropped.because
            return msgspec.structs.replace(
                upload,
                state="DONE",
                because=because or upload.because,
                refused=upload.refused + dropped.count,
            )
        return upload

    def _kept(self, model: str, upload: Upload) -> Iterator[tuple[str, Kept]]:
        """Yield the encrypted samples of a request with their reasons, the best first."""
        if upload.state not in _ACTIVE:
            return
        for reason in upload.order.of:
            suffix = sealed_suffix(upload.order.request, reason)
            for one in reversed(kept_samples(self._state_dir, model, suffix)):
                yield reason, one

    def _without_too_large(
        self, upload: Upload, kept: list[tuple[str, Kept]]
    ) -> tuple[Upload, list[tuple[str, Kept]]]:
        """Delete samples that no day's quota has space for; they would hold up all others."""
        fitting = [one for one in kept if one[1].size_bytes <= self._quota_bytes]
        for _, one in kept:
            if one.size_bytes > self._quota_bytes:
                one.path.unlink(missing_ok=True)
        if len(fitting) == len(kept):
            return upload, kept
        changed = msgspec.structs.replace(
            upload,
            refused=upload.refused + len(kept) - len(fitting),
            because=f"a sample has more bytes than [capture] upload_bytes_per_day "
            f"({self._quota_bytes})",
        )
        return changed, fitting

    def _fill(self, model: str, uploads: Uploads, kept: list[tuple[str, Kept]]) -> Uploads:
        """Begin samples while the window and the day's quota have space; count their bytes."""
        sending = {one.kept.path for one in self._outgoing.values()}
        for reason, one in kept:
            on_their_way = sum(each.pieces - each.taken for each in self._outgoing.values())
            if on_their_way >= WINDOW:
                break
            if one.path in sending:
                continue
            sent_bytes = uploads.sent_bytes + one.size_bytes
            if sent_bytes > self._quota_bytes:
                break
            digest = self._digest(one)
            if digest:
                uploads = msgspec.structs.replace(uploads, sent_bytes=sent_bytes)
                self._outgoing[digest] = _Outgoing(
                    model=model, reason=reason, kept=one, sample=digest
                )
        return uploads

    def _digest(self, kept: Kept) -> str:
        """Return the digest of a file; delete a file that cannot be a sample, and return ""."""
        try:
            if 0 < kept.size_bytes <= MAX_SAMPLE_BYTES:
                with os.fdopen(_open(kept.path), "rb") as file:
                    return hashlib.file_digest(file, "sha256").hexdigest()
        except FileNotFoundError:
            return ""
        kept.path.unlink(missing_ok=True)
        return ""

    def _pieces(self, now: float) -> Iterator[Piece]:
        if (uploads := self._uploads) is None:
            return
        left = WINDOW - sum(one.sent - one.taken for one in self._outgoing.values())
        for one in list(self._outgoing.values()):
            upload = uploads.models.get(one.model)
            if upload is None or upload.state != "UPLOADING":
                del self._outgoing[one.sample]
                continue
            if one.sent > one.taken and now - one.sent_at >= RESEND_S:
                if uploads.sent_bytes + self._resent_bytes > self._quota_bytes:
                    continue
                left += one.sent - one.taken
                self._rewind(one)
            while left > 0 and one.sent < one.pieces:
                content = self._read(one)
                if not content:
                    del self._outgoing[one.sample]
                    break
                yield Piece(
                    request=upload.order.request,
                    model=one.model,
                    sample=one.sample,
                    reason=one.reason,
                    size_bytes=one.kept.size_bytes,
                    index=one.sent,
                    content=content,
                )
                one.sent, one.sent_at, left = one.sent + 1, now, left - 1

    def _rewind(self, one: _Outgoing) -> None:
        """Send a sample again from its first piece: the fleet says how many pieces it has."""
        self._resent_bytes += min(one.kept.size_bytes, WINDOW * PIECE_BYTES)
        one.taken = one.sent = 0

    @property
    def _quota_bytes(self) -> int:
        return self._config.capture.upload_bytes_per_day

    def _read(self, one: _Outgoing) -> bytes:
        """Return the next piece; empty if the file is gone or shorter."""
        try:
            with os.fdopen(_open(one.kept.path), "rb") as file:
                return os.pread(file.fileno(), PIECE_BYTES, one.sent * PIECE_BYTES)
        except FileNotFoundError:
            return b""

    def note_taken(self, said: Taken) -> bool:
        """Note the pieces that the fleet has; delete complete samples, and refused samples.

        Returns:
            Whether a sample is finished.

        Raises:
            OSError: The state folder cannot be written.
        """
        finished: list[tuple[_Outgoing, str]] = []
        for sample, count in said.pieces.items():
            if (one := self._outgoing.get(sample)) is not None and count > one.taken:
                one.taken = min(count, one.pieces)
                one.sent = max(one.sent, one.taken)
                if one.taken == one.pieces:
                    finished.append((one, ""))
        for sample, because in said.refused.items():
            if (one := self._outgoing.get(sample)) is not None:
                finished.append((one, because or "refused"))
        uploads = self._load()
        for one, because in finished:
            one.kept.path.unlink(missing_ok=True)
            del self._outgoing[one.sample]
            if (upload := uploads.models.get(one.model)) is not None:
                counts = {
                    "uploaded": upload.uploaded + (not because),
                    "refused": upload.refused + bool(because),
                    "because": f"the fleet refused a sample: {because}"[:400]
                    if because
                    else upload.because,
                }
                changed = msgspec.structs.replace(upload, **counts)
                uploads = msgspec.structs.replace(
                    uploads, models={**uploads.models, one.model: changed}
                )
        if finished:
            self._save(uploads)
            self._look_at = 0.0
        return bool(finished)

    def resend(self) -> None:
        """Send pieces again that the fleet did not acknowledge: a new session began."""
        for one in self._outgoing.values():
            if one.sent > one.taken:
                self._rewind(one)

    def _report(self, model: str, upload: Upload, kept: int, paused: str) -> CaptureReport:
        dropped = dropped_samples(self._state_dir, model, upload.order.request)
        is_folded = upload.state == "DONE"
        return CaptureReport(
            request=upload.order.request,
            state=upload.state,
            because=(paused or upload.because or dropped.because)[:400],
            kept=kept,
            uploaded=upload.uploaded,
            dropped=upload.refused + (0 if is_folded else dropped.count),
        )

    def _load(self) -> Uploads:
        if self._uploads is None:
            self._uploads = self._file.load() or Uploads()
        return self._uploads

    def _save(self, uploads: Uploads) -> None:
        """Store the requests, then let serving processes know."""
        self._file.save(uploads)
        self._uploads = uploads
        settings = capture_settings(self._config, uploads)
        if settings != self._settings:
            if trouble := switch_capture(self._state_dir, settings):
                raise OSError(errno.EIO, trouble, str(captured_folder(self._state_dir)))
            self._settings = settings


def _open(path: Path) -> int:
    """Open a file in a folder that other users may write to; raise FileNotFoundError unless
    regular.
    """
    try:
        descriptor = open_shared(path)
    except OSError as error:
        if error.errno == errno.EINVAL:
            raise FileNotFoundError(errno.ENOENT, error.strerror, str(path)) from error
        raise
    if descriptor is None:
        raise FileNotFoundError(errno.ENOENT, "no sample", str(path))
    return descriptor


def capture_settings(config: AgentConfig, uploads: Uploads) -> CaptureSettings:
    """Return the settings of capture for serving processes."""
    base = CaptureSettings(
        samples=config.capture.samples,
        max_bytes=config.capture.max_bytes,
        disk_reserve_bytes=config.limits.disk_reserve_bytes,
        texts=config.capture.texts,
    )
    if not config.capture.upload:
        return base
    return uploads.settings(
        base, lambda model, request: sample_place(config.tenant, config.device, model, request)
    )

"""Samples of devices in the database: requests, and encrypted samples piece by piece.

A device is not trusted. A piece is stored only if the fleet asked this device for samples of this
model, if the device's share is not used up, and if the piece follows the stored pieces. A sample
counts when all pieces together have its digest.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from sqlalchemy import ColumnElement, delete, func, select
from sqlalchemy.orm import Session

from edgepack.bundle.keys import key_id, parse_public_key
from edgepack.errors import FleetError
from edgepack.fleet.database import audit, devices
from edgepack.fleet.database.audit import Entry
from edgepack.fleet.database.devices import Publication
from edgepack.fleet.database.schema import (
    CapturedDeviceRow,
    CaptureRow,
    DeviceRow,
    SamplePieceRow,
    SampleRow,
)
from edgepack.fleet.database.views import view_of
from edgepack.fleet.documents.samples import (
    DAY_S,
    CaptureDevice,
    CaptureRequest,
    CaptureView,
    SampleView,
)
from edgepack.wire.orders import CaptureOrder
from edgepack.wire.transfers import PIECE_BYTES, Piece, Taken

MAX_STORED_BYTES = 4 * 1024**3
"""Encrypted samples of all devices together."""

KEEP_S = 30 * DAY_S
"""Samples are forgotten so long after their request expired."""

MAX_VIEWS = 20
AT_ONCE = 500
_REMOVED = "removed"


def begin(
    session: Session, request: CaptureRequest, names: Sequence[str], now: float
) -> tuple[CaptureRow, tuple[Publication, ...]]:
    """Store a request, and ask its devices.

    Args:
        session: The transaction.
        request: The request.
        names: Devices that serve the model; at least one.
        now: Seconds since the epoch.

    Raises:
        FleetError: Devices choose until the request ends, so that none uploads.
    """
    if request.collect_s >= request.valid_s:
        raise FleetError(
            f"devices would choose samples for {request.collect_s:g} s, but the request ends after "
            f"{request.valid_s:g} s, so no device would upload",
            remedy="choose for a shorter time (--collect), or let the request be valid for "
            "a longer time (--valid)",
        )
    row = CaptureRow(
        model=request.model,
        of=tuple(dict.fromkeys(request.of)),
        samples=request.samples,
        share=math.ceil(request.samples / len(names)),
        recipient=request.recipient,
        collect_s=request.collect_s,
        made_at=now,
        expires_at=now + request.valid_s,
    )
    session.add(row)
    session.flush()
    order = CaptureOrder(
        request=name_of(row.number),
        samples=row.share,
        of=row.of,
        recipient=row.recipient,
        collect_s=row.collect_s,
        expires_at=row.expires_at,
    )
    publications = []
    for first in range(0, len(names), AT_ONCE):
        some = names[first : first + AT_ONCE]
        session.add_all(CapturedDeviceRow(capture=row.number, device=name) for name in some)
        for device in session.scalars(select(DeviceRow).where(DeviceRow.id.in_(some))):
            publications.append(devices.ask_for_samples(device, request.model, order, now))
    because = f"{request.samples} samples of {len(names)} devices for {', '.join(row.of)}"
    entry = Entry(action="samples.request", model=request.model, because=because)
    audit.note(session, now, entry)
    return row, tuple(publications)


def name_of(number: int) -> str:
    """Return the id of a request."""
    return f"s{number}"


def _number_of(name: str) -> int:
    """Return the number in the id of a request; 0 for any other text."""
    digits = name.removeprefix("s")
    is_number = digits.isascii() and digits.isdigit() and len(digits) < 16
    return int(digits) if is_number and name == name_of(int(digits)) else 0


def add_pieces(
    session: Session, pieces: Iterable[tuple[str, Piece]], now: float
) -> dict[str, Taken]:
    """Store pieces of samples, each with its device; return the answers to the devices."""
    answers: dict[str, Taken] = {}
    for device, piece in pieces:
        answer = answers.setdefault(device, Taken(pieces={}, refused={}))
        row = session.get(SampleRow, (device, piece.sample))
        because = _refusal(session, device, piece, now) if row is None else row.problem
        if not because:
            row = row or _begin_sample(session, device, piece, now)
            because = _add(session, row, piece)
        if because:
            answer.pieces.pop(piece.sample, None)
            answer.refused[piece.sample] = because
        elif row is not None:
            answer.pieces[piece.sample] = row.pieces
    return answers


def _refusal(session: Session, device: str, piece: Piece, now: float) -> str:
    """Return why the fleet takes no piece of a new sample; "" if the fleet does."""
    row = session.get(CaptureRow, _number_of(piece.request))
    if row is None or row.model != piece.model or piece.reason not in row.of:
        return "the fleet did not request this sample"
    if session.get(CapturedDeviceRow, (row.number, device)) is None:
        return "the fleet did not request samples of this device"
    if now > row.expires_at:
        return "the request has expired"
    own = (SampleRow.capture == row.number, SampleRow.device == device)
    count = session.scalar(select(func.count()).select_from(SampleRow).where(*own)) or 0
    if count >= row.share:
        return f"the fleet takes {row.share} samples of this device"
    stored = session.scalar(select(func.sum(SampleRow.size_bytes)).where(SampleRow.problem == ""))
    if (stored or 0) + piece.size_bytes > MAX_STORED_BYTES:
        return f"the fleet stores {MAX_STORED_BYTES // 2**20} MB of samples at most"
    return ""


def _begin_sample(session: Session, device: str, piece: Piece, now: float) -> SampleRow:
    row = SampleRow(
        device=device,
        sample=piece.sample,
        capture=_number_of(piece.request),
        model=piece.model,
        reason=piece.reason,
        size_bytes=piece.size_bytes,
        pieces=0,
        is_whole=False,
        problem="",
        received_at=now,
    )
    session.add(row)
    session.flush()
    return row


def _add(session: Session, row: SampleRow, piece: Piece) -> str:
    """Store a piece if it is the next; return why the whole sample is refused, or ""."""
    if (row.capture, row.size_bytes) != (_number_of(piece.request), piece.size_bytes):
        return _drop(session, row, "pieces contradict each other")
    if row.is_whole or piece.index != row.pieces:
        return ""
    start = piece.index * PIECE_BYTES
    if len(piece.content) != min(PIECE_BYTES, row.size_bytes - start):
        return _drop(session, row, "a piece has the wrong length")
    session.add(
        SamplePieceRow(
            device=row.device, sample=row.sample, number=piece.index, content=piece.content
        )
    )
    row.pieces += 1
    row.is_whole = start + len(piece.content) == row.size_bytes
    session.flush()
    if row.is_whole and hashlib.sha256(content_of(session, row)).hexdigest() != row.sample:
        return _drop(session, row, "the pieces do not have the digest of the sample")
    return ""


def _drop(session: Session, row: SampleRow, because: str) -> str:
    """Delete the content of a sample; the sample still counts, so that it does not come again."""
    session.execute(delete(SamplePieceRow).where(*_pieces_of(row)))
    row.problem, row.is_whole = because, False
    session.flush()
    return because


def _pieces_of(row: SampleRow) -> tuple[ColumnElement[bool], ...]:
    return (SamplePieceRow.device == row.device, SamplePieceRow.sample == row.sample)


def content_of(session: Session, row: SampleRow) -> bytes:
    """Return the encrypted bytes of a sample."""
    query = select(SamplePieceRow.content).where(*_pieces_of(row)).order_by(SamplePieceRow.number)
    return b"".join(session.scalars(query))


def find(session: Session, model: str, device: str, sample: str) -> SampleRow:
    """Return a complete sample.

    Raises:
        FleetError: The fleet has no such sample.
    """
    row = session.get(SampleRow, (device, sample))
    if row is None or not row.is_whole or row.model != model:
        raise FleetError(
            f"the fleet has no sample {sample[:12]} of {model!r} from {device!r}",
            remedy="edgepack fleet samples lists them",
        )
    return row


def list_samples(session: Session, model: str, after: str, limit: int) -> tuple[SampleView, ...]:
    """Return a page of a model's complete samples, by device and digest.

    Args:
        session: The transaction.
        model: The model's name.
        after: `DEVICE/SAMPLE` of the last entry of the page before; "" for the first page.
        limit: Entries of a page.
    """
    device, _, sample = after.partition("/")
    query = (
        select(SampleRow)
        .where(SampleRow.model == model, SampleRow.is_whole.is_(True))
        .where(
            (SampleRow.device > device)
            | ((SampleRow.device == device) & (SampleRow.sample > sample))
        )
        .order_by(SampleRow.device, SampleRow.sample)
        .limit(limit)
    )
    return tuple(
        view_of(SampleView, row, capture=name_of(row.capture)) for row in session.scalars(query)
    )


def list_captures(session: Session, model: str, now: float) -> tuple[CaptureView, ...]:
    """Return the last requests of a model, the newest first.

    Args:
        session: The transaction.
        model: The model's name; "" for all models.
        now: Seconds since the epoch.
    """
    query = select(CaptureRow).order_by(CaptureRow.number.desc()).limit(MAX_VIEWS)
    if model:
        query = query.where(CaptureRow.model == model)
    return tuple(show_capture(session, row, now) for row in session.scalars(query).all())


def show_capture(session: Session, row: CaptureRow, now: float) -> CaptureView:
    """Return a request with its devices."""
    expired = "the request expired" if now > row.expires_at else ""
    replaced = _replaced(session, row)
    received: Counter[str] = Counter()
    counted = (
        select(SampleRow.device, func.count())
        .where(SampleRow.capture == row.number, SampleRow.is_whole.is_(True))
        .group_by(SampleRow.device)
    )
    for device, count in session.execute(counted):
        received[device] = count
    asked = (
        select(CapturedDeviceRow.device, DeviceRow)
        .outerjoin(DeviceRow, DeviceRow.id == CapturedDeviceRow.device)
        .where(CapturedDeviceRow.capture == row.number)
        .order_by(CapturedDeviceRow.device)
    )
    return view_of(
        CaptureView,
        row,
        capture=name_of(row.number),
        key=key_id(parse_public_key(row.recipient.encode(), Path("recipient"))),
        devices=tuple(
            _show_device(name, device, row, received[name], replaced.get(name, expired))
            for name, device in session.execute(asked, execution_options={"yield_per": AT_ONCE})
        ),
    )


def _replaced(session: Session, row: CaptureRow) -> dict[str, str]:
    """Return the devices that a later request asks for samples of the model, with a reason."""
    query = (
        select(CapturedDeviceRow.device, func.max(CaptureRow.number))
        .join(CaptureRow, CaptureRow.number == CapturedDeviceRow.capture)
        .where(CaptureRow.model == row.model, CaptureRow.number > row.number)
        .group_by(CapturedDeviceRow.device)
    )
    return {
        device: f"{name_of(number)} replaced this request"
        for device, number in session.execute(query)
    }


def _show_device(
    name: str, device: DeviceRow | None, row: CaptureRow, received: int, ended: str
) -> CaptureDevice:
    """Return the state of a device; `ended` is why a device that reports none sends no more."""
    if device is None:
        ended = "the device was removed"
    reported = devices.last_report(device) if device is not None else None
    model = reported.models.get(row.model) if reported else None
    said = model.capture if model else None
    if said is None or said.request != name_of(row.number):
        state = "ENDED" if ended else ""
        return CaptureDevice(device=name, state=state, because=ended, received=received)
    return CaptureDevice(
        device=name,
        state=said.state,
        because=said.because,
        kept=said.kept,
        dropped=said.dropped,
        received=received,
    )


def remove(session: Session, model: str, now: float) -> int:
    """Delete the content of a model's samples; return their number."""
    rows = select(SampleRow).where(SampleRow.model == model, SampleRow.problem == "")
    found = session.scalars(rows).all()
    for row in found:
        _drop(session, row, _REMOVED)
    entry = Entry(action="samples.remove", model=model, because=f"{len(found)} samples")
    audit.note(session, now, entry)
    return len(found)


def forget_old(session: Session, now: float) -> None:
    """Delete requests that expired long ago with their samples, and incomplete samples of expired
    requests.
    """
    expired = select(CaptureRow.number).where(CaptureRow.expires_at < now)
    incomplete = select(SampleRow).where(
        SampleRow.capture.in_(expired), SampleRow.is_whole.is_(False), SampleRow.problem == ""
    )
    for row in session.scalars(incomplete).all():
        _drop(session, row, "incomplete")
    old = select(CaptureRow.number).where(CaptureRow.expires_at < now - KEEP_S)
    for number in session.scalars(old).all():
        for row in session.scalars(select(SampleRow).where(SampleRow.capture == number)).all():
            session.execute(delete(SamplePieceRow).where(*_pieces_of(row)))
            session.delete(row)
        session.execute(delete(CapturedDeviceRow).where(CapturedDeviceRow.capture == number))
        session.execute(delete(CaptureRow).where(CaptureRow.number == number))

"""Chunks that a device lacks, and what it uploads: samples and log lines."""

from typing import Annotated

import msgspec

from edgepack.wire.messages import (
    Count,
    Digest,
    Message,
    Token,
    Word,
)
from edgepack.wire.orders import (
    MAX_LOG_LINES,
)

PIECE_BYTES = 64 * 1024
"""Bytes of a sample in a message; the last piece of a sample may be shorter."""

MAX_SAMPLE_BYTES = 16 * 1024 * 1024
"""An encrypted sample, at most."""

LogLine = Annotated[str, msgspec.Meta(max_length=500)]


class NeedFile(msgspec.Struct, frozen=True, kw_only=True):
    """The chunks of one file that a device still lacks.

    Attributes:
        sha256: The file.
        chunk_count: Chunks of the file, as the device counts them.
        missing: zlib-compressed bitmap, bit i of byte i // 8 (least significant bit first)
            set when chunk i is missing; base64 in JSON.
        latest: The chunk of it that came last, whether it was lacking or not; None when none came
            since the device asked first. From `chunk_count` on it is that coded message
            (`edgepack.wire.coded`) which has the rest for its number.
        takes_coded: Whether the device hears coded messages of this file.
    """

    sha256: str
    chunk_count: int
    missing: bytes
    latest: Count | None = None
    takes_coded: bool = False


class Need(Message, frozen=True, kw_only=True):
    """Device to controller: what it still lacks of the bundle.

    Attributes:
        digest: Root digest of the bundle.
        files: Files with missing chunks; empty when nothing is missing.
        round: How often it asked for this bundle, from 1.
        received: Chunks that came since the last need, and `lost` that were awaited and did not.
        lost: See `received`.
        under_way: Whether chunks come, so that what was sent later than all that came may be on its
            way still. Without it nothing has come for a while.
        bytes_per_s: What the device may be sent a second, by its settings; it is then served by
            itself. 0 means no limit.
    """

    digest: str
    files: tuple[NeedFile, ...]
    round: Count = 1
    received: Count = 0
    lost: Count = 0
    under_way: bool = False
    bytes_per_s: Count = 0


class Piece(Message, frozen=True, kw_only=True):
    """Device to controller: a piece of an encrypted sample; pieces come in order.

    Attributes:
        request, model: The request that asked for the sample, and its model.
        sample: SHA-256 of the whole encrypted sample.
        reason: Reason of the choice, see `CAPTURE_REASONS`.
        size_bytes: Size of the whole encrypted sample.
        index: Number of the piece, from 0.
        content: `PIECE_BYTES` of the sample, or the rest.
    """

    request: Token
    model: Word
    sample: Digest
    reason: Word
    size_bytes: Annotated[int, msgspec.Meta(ge=1, le=MAX_SAMPLE_BYTES)]
    index: Annotated[int, msgspec.Meta(ge=0, le=MAX_SAMPLE_BYTES // PIECE_BYTES)]
    content: Annotated[bytes, msgspec.Meta(min_length=1, max_length=PIECE_BYTES)]


class Taken(Message, frozen=True, kw_only=True):
    """Controller to one device: the pieces of samples that the fleet has.

    Attributes:
        pieces: By sample: number of pieces, from the first.
        refused: By sample: why the fleet does not take the sample; the device deletes the sample.
    """

    pieces: dict[Digest, Count] = msgspec.field(default_factory=dict)
    refused: dict[Digest, Word] = msgspec.field(default_factory=dict)


class LogLines(Message, frozen=True, kw_only=True):
    """Device to controller: the last lines of the agent's log, without secrets.

    Attributes:
        request: The request that asked for the lines.
        because: Reason for a refusal; "" without a refusal.
        lines: The lines, the newest last.
    """

    request: Token
    because: Word = ""
    lines: Annotated[tuple[LogLine, ...], msgspec.Meta(max_length=MAX_LOG_LINES)] = ()

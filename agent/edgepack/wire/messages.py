"""The messages on the wire, as typed values; JSON on the way.

Every message has a version (`edgepack.versions`): unknown fields of a newer minor version are
ignored. States and kinds are text and are shown as received: a newer peer may know more of them.
A reader drops, with a reason, a message that does not fit its type or holds an impossible number or
name. Times are seconds since the epoch (UTC) as floats.
"""

from typing import Annotated, TypeVar

import msgspec

from edgepack.decoding import decode_json
from edgepack.errors import TransferError
from edgepack.versions import Format, NewerVersionError, Version

WIRE_VERSION = Version(1, 0)

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]

Moment = Annotated[float, msgspec.Meta(ge=0, le=2**33)]
"""Seconds since the epoch (UTC): of a clock that was never set, or up to the year 2242."""

Span = Annotated[float, msgspec.Meta(ge=0, le=2**33)]

Word = Annotated[str, msgspec.Meta(max_length=400)]
"""A name, a digest, a bundle's title."""

Deviations = Annotated[float, msgspec.Meta(ge=0, le=1_000_000)]
"""Standard deviations of one inference."""

Pem = Annotated[str, msgspec.Meta(max_length=8192)]
"""A certificate, or a request for one."""

Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]

Token = Annotated[str, msgspec.Meta(pattern="^[a-z0-9]{1,32}$")]

MAX_MESSAGE_BYTES = 120 * 1024
"""A message with its header stays below this, so that a broker limit of 128 KiB holds."""


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """Common fields of all messages."""

    v: int = WIRE_VERSION.major
    minor: int = WIRE_VERSION.minor


M = TypeVar("M", bound=Message)


def encode(message: Message) -> bytes:
    """Return JSON bytes of a message."""
    return msgspec.json.encode(message)


def decode(payload: bytes, kind: type[M]) -> M:
    """Read a message.

    Raises:
        TransferError: The bytes are not JSON, do not fit the type, or are of a newer major version.
    """
    try:
        # Most messages are of this very version: they are decoded once.
        message = decode_json(payload, kind)
        if message.v == WIRE_VERSION.major:
            return message
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass  # A newer one need not fit; what is wrong with it is found below.
    title = kind.__name__
    form = Format(f"{title} message", kind, WIRE_VERSION)
    try:
        return form.decode(payload).value
    except NewerVersionError as error:
        raise TransferError(error.problem, remedy=error.remedy) from error
    except ValueError as error:
        raise TransferError(f"malformed {title} message: {error}") from error

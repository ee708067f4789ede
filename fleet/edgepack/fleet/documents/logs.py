"""Log lines of a device, as the API accepts requests and returns lines."""

from typing import Annotated, Literal

import msgspec

from edgepack.wire.orders import MAX_LOG_LINES

LogState = Literal["NONE", "ASKED", "RECEIVED", "REFUSED", "EXPIRED"]


class LogRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request for the last log lines of a device.

    Attributes:
        lines: Lines, at most.
        valid_s: Seconds after which the device sends no line.
    """

    lines: Annotated[int, msgspec.Meta(ge=1, le=MAX_LOG_LINES)] = 200
    valid_s: Annotated[float, msgspec.Meta(ge=1, le=7 * 24 * 3600)] = 3600.0


class LogView(msgspec.Struct, frozen=True, kw_only=True):
    """Log lines of a device, by the last request.

    Attributes:
        device: Its id.
        state: State of the request; `NONE` without a request.
        because: Reason of a refusal; "" without a refusal.
        asked_at, received_at: Seconds since the epoch (UTC); 0 if not yet.
        lines: The lines as the device sent them, the newest last.
    """

    device: str
    state: LogState = "NONE"
    because: str = ""
    asked_at: float = 0.0
    received_at: float = 0.0
    lines: tuple[str, ...] = ()

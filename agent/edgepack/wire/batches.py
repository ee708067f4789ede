"""Signed batches of a device's messages, and what the fleet answers them with."""

from typing import Annotated

import msgspec

from edgepack.wire.messages import (
    Count,
    Message,
    Pem,
    Word,
)

MAX_BATCH = 64
"""Messages of one signed batch."""


class Batch(Message, frozen=True, kw_only=True):
    """Batch of one topic's messages, published at one time.

    Attributes:
        tenant, device, kind: Where it belongs; the same as in its topic.
        boot: Random id of the device's process.
        session: The word that the controller gave to this process; "" before it gave one.
        sequence: Number of the first message; the messages of this kind are counted from 1.
        journal: The device's journal in which windows of telemetry are counted; "" if the session
            counts.
        messages: Encoded messages of that kind; one if the kind is `reported`.
        signing_request: A certificate request of the device's key (PEM), sent without a session by
            a device that has no certificate; else "".
    """

    tenant: Word
    device: Word
    kind: Word
    boot: Word
    session: Word = ""
    sequence: Count
    journal: Word = ""
    messages: Annotated[tuple[msgspec.Raw, ...], msgspec.Meta(max_length=MAX_BATCH)]
    signing_request: Pem = ""


class Session(Message, frozen=True, kw_only=True):
    """Controller to one device: the session of its batches from now on.

    Attributes:
        boot: The process that it is for.
        session: The word.
    """

    boot: Word
    session: Word


class Received(Message, frozen=True, kw_only=True):
    """Controller to one device: the telemetry that the fleet has.

    Attributes:
        journal: The device's journal.
        until: Number of a window; the fleet has this window and all before.
        newest: Highest number of a window that the fleet has.
    """

    journal: Word
    until: Count
    newest: Count

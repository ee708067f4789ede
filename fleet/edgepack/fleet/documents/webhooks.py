"""Webhooks: what is ordered to other systems, as the API takes and gives it."""

from typing import Annotated

import msgspec

DEVICE_FAILED = "device.failed"
"""A device refused a release or went back from it; the other types are actions of the audit log."""
DEFAULT_TYPES = ("rollout", DEVICE_FAILED)

Url = Annotated[str, msgspec.Meta(max_length=2000)]
Types = Annotated[
    tuple[Annotated[str, msgspec.Meta(pattern=r"^[a-z]{1,40}(\.[a-z]{1,40})?$")], ...],
    msgspec.Meta(min_length=1, max_length=40),
]


class WebhookRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A webhook to make.

    Attributes:
        name: What it is called, in lists and in the audit log.
        url: Where messages are posted.
        types: What is reported: actions of the audit log such as `rollout.breach`, `rollout` for
            all of these that begin so, and `device.failed`.
        is_unsafe: Lets the URL be without TLS, and lead into a private network.
    """

    name: str
    url: Url
    types: Types = DEFAULT_TYPES
    is_unsafe: bool = False


class WebhookView(msgspec.Struct, frozen=True, kw_only=True):
    """A webhook, without the secret that its messages are signed with.

    Attributes:
        name: What it is called.
        url: Where messages are posted.
        types: What is reported.
        is_unsafe: Whether the URL may be without TLS, and lead into a private network.
        made_at: When it was made, seconds since the epoch (UTC).
        made_by: Who made it.
        delivered: Messages that were taken.
        skipped: Messages that were given up: too many waited, or one was refused for too long.
        failures: Attempts in a row that failed.
        because: Why the last one did; "" when it did not.
        next_at: When the next attempt is due, seconds since the epoch (UTC); 0 for at once.
    """

    name: str
    url: str
    types: tuple[str, ...]
    is_unsafe: bool
    made_at: float
    made_by: str
    delivered: int
    skipped: int
    failures: int
    because: str
    next_at: float


class NewWebhook(msgspec.Struct, frozen=True, kw_only=True):
    """A webhook that was just made.

    Attributes:
        secret: What its messages are signed with (`whsec_…`); it is returned only once.
        view: What is known of it from now on.
    """

    secret: str
    view: WebhookView


class WebhookTrial(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a test message.

    Attributes:
        delivered: Whether it was taken.
        because: What the receiver answered, or why it could not be reached.
    """

    delivered: bool
    because: str

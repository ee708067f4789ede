"""Webhooks: messages to other systems, as the API accepts and returns webhooks."""

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
        name: Name in lists and in the audit log.
        url: Where messages are posted.
        types: Events to report: actions of the audit log such as `rollout.breach`, a prefix such as
            `rollout`, and `device.failed`.
        is_unsafe: Lets the URL be without TLS, and lead into a private network.
    """

    name: str
    url: Url
    types: Types = DEFAULT_TYPES
    is_unsafe: bool = False


class WebhookView(msgspec.Struct, frozen=True, kw_only=True):
    """A webhook, without the secret that its messages are signed with.

    Attributes:
        name: The webhook's name.
        url: Where messages are posted.
        types: Events to report.
        is_unsafe: Whether the URL may be without TLS, and lead into a private network.
        made_at: Creation time, seconds since the epoch (UTC).
        made_by: Actor that made the webhook.
        delivered: Messages that were taken.
        skipped: Discarded messages: too many were waiting, or a message was rejected for too long.
        failures: Attempts in a row that failed.
        because: Reason of the last failure; "" if the last attempt succeeded.
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
        secret: The signing secret of its messages (`whsec_…`); returned only once.
        view: The webhook without its secret.
    """

    secret: str
    view: WebhookView


class WebhookTrial(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a test message.

    Attributes:
        delivered: Whether the receiver accepted the message.
        because: The receiver's answer, or the reason why the receiver could not be reached.
    """

    delivered: bool
    because: str

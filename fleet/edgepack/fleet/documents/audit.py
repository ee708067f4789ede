"""The audit log, as the API returns entries."""

from typing import Literal

import msgspec

Action = Literal[
    "rollout.start",
    "rollout.wave",
    "rollout.hold",
    "rollout.silent",
    "rollout.breach",
    "rollout.set_aside",
    "rollout.pause",
    "rollout.resume",
    "rollout.abort",
    "rollout.finish",
    "rollout.rollback",
    "rollout.approve",
    "rollout.retry",
    "rollout.supersede",
    "device.enroll",
    "device.move",
    "device.label",
    "device.remove",
    "certificate.issue",
    "certificate.renew",
    "certificate.revoke",
    "release.publish",
    "release.fetch",
    "release.damaged",
    "release.restored",
    "release.sign",
    "release.withdraw",
    "release.delete",
    "token.make",
    "token.revoke",
    "webhook.add",
    "webhook.remove",
    "samples.request",
    "logs.request",
    "samples.remove",
    "database.restored",
]
"""What is done or decided, as the audit log names it."""

Number = bool | int | float | str | None
"""What a decision rested on; a text where a number alone would not say it."""


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Entry of the audit log: an action or a decision.

    Attributes:
        id: Grows from entry to entry.
        at: When, seconds since the epoch (UTC), by the clock of the controller.
        actor: `controller` for the rules of a rollout, `gate NAME` for a gate, `token` or `token
            NAME` for a request through the API.
        action: The action, such as `rollout.wave`; see `edgepack fleet audit --help`.
        rollout, device, model: The object; "" if not applicable.
        digest: Root digest of the release; "" if not applicable.
        because: The reason in a sentence.
        numbers: Numbers that decided, by name.
    """

    id: int
    at: float
    actor: str
    action: str
    rollout: str
    device: str
    model: str
    digest: str
    because: str
    numbers: dict[str, Number]

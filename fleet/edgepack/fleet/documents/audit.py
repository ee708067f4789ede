"""The audit log, as the API gives it."""

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
    "release.sign",
    "release.withdraw",
    "release.delete",
    "token.make",
    "token.revoke",
    "webhook.add",
    "webhook.remove",
]
"""What is done or decided, as the audit log names it."""

Number = bool | int | float | str | None
"""What a decision rested on; a text where a number alone would not say it."""


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Entry of the audit log: an action or a decision.

    Attributes:
        id: Grows from entry to entry.
        at: When, seconds since the epoch (UTC), by the clock of the controller.
        actor: Who did it: `controller` for the rules of a rollout, `gate NAME` for a gate of one,
            `token` or `token NAME` for who asked through the API.
        action: What was done, such as `rollout.wave`; see `edgepack fleet audit --help`.
        rollout, device, model: To what; "" where it does not apply.
        digest: Root digest of the release; "" where it does not apply.
        because: The reason in one sentence.
        numbers: What the decision rested on, by name.
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

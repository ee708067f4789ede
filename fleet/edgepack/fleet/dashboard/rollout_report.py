"""A rollout as a self-contained page for an outsider."""

from collections.abc import Iterable, Sequence
from itertools import islice

import msgspec

from edgepack.fleet.dashboard.render import document
from edgepack.fleet.documents.audit import AuditEntry
from edgepack.fleet.documents.rollouts import AssignmentView, RolloutView

MAX_FAILED = 10_000
NAMED = 12
"""Devices of a reason that are named; the others are counted."""


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """Reason of failures.

    Attributes:
        because: The devices' words.
        devices: Examples.
        count: How many there are.
    """

    because: str
    devices: tuple[str, ...]
    count: int


def render_report(
    rollout: RolloutView, failed: Iterable[AssignmentView], acts: Sequence[AuditEntry]
) -> str:
    """Return the page: HTML that loads nothing and runs nothing.

    Args:
        rollout: The rollout's current state.
        failed: The parts of devices that failed or stayed silent.
        acts: Its entries of the audit log, the newest first.
    """
    return document(
        "rollout_report",
        rollout=rollout,
        reasons=reasons_of(islice(failed, MAX_FAILED)),
        acts=tuple(reversed(acts)),
    )


def reasons_of(failed: Iterable[AssignmentView]) -> tuple[Reason, ...]:
    """Return failed devices by reported reason, the most frequent reason first."""
    found: dict[str, list[str]] = {}
    for part in failed:
        found.setdefault(part.because, []).append(part.device)
    reasons = (
        Reason(because=because, devices=tuple(devices[:NAMED]), count=len(devices))
        for because, devices in found.items()
    )
    return tuple(sorted(reasons, key=lambda reason: -reason.count))

"""Findings of an examination."""

from typing import Literal

import msgspec

from edgepack.agent.config import AgentConfig
from edgepack.agent.state.models import DEFAULT_STATE_DIR
from edgepack.agent.update.status import Status

Verdict = Literal["ok", "warning", "wrong"]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Finding of a check.

    Attributes:
        subject: Subject of the check, a word.
        verdict: "wrong" prevents work, "warning" may prevent work later or could not be examined.
        fact: The fact, with its number.
        remedy: Remedy; "" if nothing is to be done.
    """

    subject: str
    verdict: Verdict
    fact: str
    remedy: str = ""


class UnitState(msgspec.Struct, frozen=True, kw_only=True):
    """State of the agent's unit, in systemd's words.

    Attributes:
        active, enabled, result: `ActiveState`, `UnitFileState` and `Result`.
        restarts: Restarts by systemd since the unit was last started by a person.
    """

    active: str
    enabled: str
    restarts: int
    result: str


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """The examined device.

    Attributes:
        config: Settings; None if they cannot be read.
        state_dir: The agent's state folder.
        status: Status by the state folder; None if the folder cannot be read.
        unit: State of the agent's unit; None if unknown.
        now: Seconds since the epoch.
    """

    config: AgentConfig | None
    state_dir: str = str(DEFAULT_STATE_DIR)
    status: Status | None = None
    unit: UnitState | None = None
    now: float


def ok(subject: str, fact: str) -> Finding:
    """Return a finding without a problem."""
    return Finding(subject=subject, verdict="ok", fact=fact)


def warn(subject: str, fact: str, remedy: str) -> Finding:
    """Return a finding that a person should know."""
    return Finding(subject=subject, verdict="warning", fact=fact, remedy=remedy)


def wrong(subject: str, fact: str, remedy: str) -> Finding:
    """Return a finding that prevents work."""
    return Finding(subject=subject, verdict="wrong", fact=fact, remedy=remedy)

"""The life cycle of a model's updates, as a table: action and successors of each state.

Pure. `updater` carries out the actions; only this table decides the order of states.

    python -m edgepack.agent.update.lifecycle        # the table as a Mermaid diagram, for the docs
"""

from typing import Literal

import msgspec

State = Literal[
    "IDLE",
    "OFFERED",
    "DOWNLOADING",
    "VERIFIED",
    "STAGED",
    "INSTALLING",
    "REBOOTING",
    "PROBING",
    "SHADOWING",
    "ACTIVATING",
    "SOAKING",
    "CONFIRMING",
    "COMMITTED",
    "ROLLING_BACK",
    "REVERTING",
    "ROLLED_BACK",
    "REJECTED",
    "REMOVING",
    "REMOVED",
]

Outcome = Literal["success", "failure", "already", "shadow", "firmware"]
"""How an action ended; `already` means that there is nothing to do, `shadow` that the order asks
for a comparison with the serving release first, and `firmware` that the release changes the
firmware, too."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """Row of a state.

    Attributes:
        action: Action of the agent in this state; every action can run again.
        success, failure: The state that follows; None where the update rests here.
        restart: The state in which a restarted agent continues.
        newer: The state that follows when a newer offer waits; None lets the action end first.
        already: The state that follows when there is nothing to do.
        shadow: The state that follows when the order asks for a comparison first.
        firmware: The state that follows when the release changes the firmware, too.
        removal: The state that follows if the waiting order removes the model.
        is_risky: Whether the release, or a hook, is at work: a restart may be its doing.
        is_on_trial: Whether a release with firmware must find its firmware running.
    """

    action: str
    success: State | None = None
    failure: State | None = None
    restart: State
    newer: State | None = None
    already: State | None = None
    shadow: State | None = None
    firmware: State | None = None
    removal: State | None = None
    is_risky: bool = False
    is_on_trial: bool = False


TABLE: dict[State, Row] = {
    "IDLE": Row(
        action="wait for an offer",
        restart="IDLE",
        newer="OFFERED",
        removal="REMOVING",
    ),
    "OFFERED": Row(
        action="fetch manifest and signature, judge them, ask the hooks",
        success="DOWNLOADING",
        failure="REJECTED",
        restart="OFFERED",
        newer="REJECTED",
        already="COMMITTED",
    ),
    "DOWNLOADING": Row(
        action="take equal chunks from other slots, fetch the rest, verify every file",
        success="VERIFIED",
        failure="ROLLING_BACK",
        restart="DOWNLOADING",
        newer="ROLLING_BACK",
    ),
    "VERIFIED": Row(
        action="run the hooks staged.before",
        success="STAGED",
        failure="ROLLING_BACK",
        restart="VERIFIED",
        newer="ROLLING_BACK",
        is_risky=True,
    ),
    "STAGED": Row(
        action="run the hooks staged.after",
        success="PROBING",
        failure="ROLLING_BACK",
        restart="STAGED",
        newer="ROLLING_BACK",
        firmware="INSTALLING",
        is_risky=True,
    ),
    "INSTALLING": Row(
        action="install the release's firmware beside the running firmware, between the hooks",
        success="REBOOTING",
        failure="ROLLING_BACK",
        restart="INSTALLING",
        newer="ROLLING_BACK",
        already="PROBING",
        is_risky=True,
    ),
    "REBOOTING": Row(
        action="restart the device, compare the firmware that runs with the release's",
        success="PROBING",
        failure="ROLLING_BACK",
        restart="REBOOTING",
        is_risky=True,
    ),
    "PROBING": Row(
        action="run the golden inputs on every candidate, choose the fastest that is right",
        success="ACTIVATING",
        failure="ROLLING_BACK",
        restart="PROBING",
        newer="ROLLING_BACK",
        shadow="SHADOWING",
        is_risky=True,
        is_on_trial=True,
    ),
    "SHADOWING": Row(
        action="compare real inferences with those of the release that serves",
        success="ACTIVATING",
        failure="ROLLING_BACK",
        restart="SHADOWING",
        newer="ROLLING_BACK",
        is_risky=True,
        is_on_trial=True,
    ),
    "ACTIVATING": Row(
        action="hooks activating.before, switch the pointer, hooks activating.after",
        success="SOAKING",
        failure="ROLLING_BACK",
        restart="ACTIVATING",
        newer="ROLLING_BACK",
        is_risky=True,
        is_on_trial=True,
    ),
    "SOAKING": Row(
        action="watch real inferences for the soak time, run the hooks committed.before",
        success="COMMITTED",
        failure="ROLLING_BACK",
        restart="SOAKING",
        newer="ROLLING_BACK",
        firmware="CONFIRMING",
        is_risky=True,
        is_on_trial=True,
    ),
    "CONFIRMING": Row(
        action="end the trial of the firmware, so that both are kept",
        success="COMMITTED",
        failure="ROLLING_BACK",
        restart="CONFIRMING",
        is_risky=True,
        is_on_trial=True,
    ),
    "COMMITTED": Row(
        action="mark the pointer, remove old slots, run the hooks committed.after",
        restart="COMMITTED",
        newer="OFFERED",
        removal="REMOVING",
    ),
    "ROLLING_BACK": Row(
        action="switch the pointer back if it was switched, remove the slot",
        success="ROLLED_BACK",
        restart="ROLLING_BACK",
        firmware="REVERTING",
    ),
    "REVERTING": Row(
        action="start the previous firmware again; report if that fails",
        success="ROLLED_BACK",
        failure="ROLLED_BACK",
        restart="REVERTING",
        is_risky=True,
    ),
    "ROLLED_BACK": Row(
        action="the model from before serves; wait for an offer",
        restart="ROLLED_BACK",
        newer="OFFERED",
        removal="REMOVING",
    ),
    "REJECTED": Row(
        action="nothing was changed; wait for an offer",
        restart="REJECTED",
        newer="OFFERED",
        removal="REMOVING",
    ),
    "REMOVING": Row(
        action="take the pointer away, remove the slots that nothing else points to",
        success="REMOVED",
        restart="REMOVING",
    ),
    "REMOVED": Row(
        action="the model is gone; wait for an offer",
        restart="REMOVED",
        newer="OFFERED",
        removal="REMOVING",
    ),
}

RESTING: frozenset[State] = frozenset(s for s, row in TABLE.items() if row.newer == "OFFERED")
"""States in which an update is over, or none ever began."""

GOING_BACK: frozenset[State] = frozenset(
    s for s, row in TABLE.items() if row.success == "ROLLED_BACK"
)
"""States of a decided rollback, which no order stops."""


def follow(state: State, outcome: Outcome) -> State:
    """Return the state that follows an action.

    Raises:
        ValueError: The action of that state cannot end so.
    """
    row = TABLE[state]
    after: State | None = getattr(row, outcome)
    if after is None:
        raise ValueError(f"{state} has no state to follow on {outcome}")
    return after


class Resumption(msgspec.Struct, frozen=True, kw_only=True):
    """State in which a restarted agent continues, and the reason for a changed state."""

    state: State
    because: str = ""


def resume(state: State, *, restarts: int, max_restarts: int) -> Resumption:
    """Return the state in which an agent continues after a restart; too many restarts end the
    update.

    Args:
        state: State in the journal.
        restarts: Restarts that count against this update, the present restart included.
        max_restarts: How many are allowed.
    """
    row = TABLE[state]
    if row.failure is not None and restarts > max_restarts:
        because = (
            f"given up in {state}: the agent was restarted {restarts} times during this update, "
            f"{max_restarts} are allowed"
        )
        return Resumption(state=row.failure, because=because)
    return Resumption(state=row.restart)


def mermaid() -> str:
    """Return the table as a Mermaid state diagram; a semicolon would end a label there."""
    lines = ["stateDiagram-v2", "    [*] --> IDLE"]
    for state, row in TABLE.items():
        lines.append(f"    {state} : {state}<br/>{row.action.replace(';', ',')}")
        if row.success:
            lines.append(f"    {state} --> {row.success}")
        if row.failure:
            lines.append(f"    {state} --> {row.failure} : failure")
        if row.already:
            lines.append(f"    {state} --> {row.already} : already so")
        if row.shadow:
            lines.append(f"    {state} --> {row.shadow} : shadow first")
        if row.newer and row.newer != row.failure:
            lines.append(f"    {state} --> {row.newer} : newer offer")
        if row.firmware:
            lines.append(f"    {state} --> {row.firmware} : with firmware")
        if row.removal:
            lines.append(f"    {state} --> {row.removal} : told to go")
    return "\n".join(lines)


if __name__ == "__main__":
    print(mermaid())

"""Progress of a build, reported as events; the caller decides on the display."""

from collections.abc import Callable

import msgspec
from msgspec.structs import replace


class BuildStep(msgspec.Struct, frozen=True, kw_only=True):
    """Step of a build, with its progress.

    Attributes:
        what: The step; the step continues until the next report. "" where this is a part of the
            step that continues.
        detail: Part of the step; "" without parts.
        done, total: How many pieces are done, and how many there are; total 0 means unknown.
        profile: Profile of the step; "" for all.
        outcome: Result of the step, reported at its end; "" before, and without a result.
        candidates: How many candidates the search has measured.
        best: The best candidate so far, in words; "" before the first.
        left_s: Seconds that are left for the search; None without a limit.
    """

    what: str = ""
    detail: str = ""
    done: int = 0
    total: int = 0
    profile: str = ""
    outcome: str = ""
    candidates: int = 0
    best: str = ""
    left_s: float | None = None

    def __str__(self) -> str:
        """Return the step in words: `cpu: candidate 3, ranking nodes, 12 of 40`."""
        pieces = f"{self.done} of {self.total}" if self.total else ""
        told = ", ".join(part for part in (self.what, self.detail, pieces) if part)
        outcome = f": {self.outcome}" if self.outcome else ""
        return f"{self.profile}: {told}{outcome}" if self.profile else f"{told}{outcome}"


Progress = Callable[[BuildStep], None]
"""Told each step, and how far it is."""


def silent(step: BuildStep) -> None:
    """Show nothing."""


def for_profile(progress: Progress, name: str) -> Progress:
    """Report that steps are for a profile."""
    return lambda step: progress(replace(step, profile=name))


def within(progress: Progress, what: str) -> Progress:
    """Report steps as parts of a continuing step."""

    def told(step: BuildStep) -> None:
        detail = ", ".join(part for part in (step.what, step.detail) if part)
        progress(replace(step, what=what, detail=detail, outcome="", candidates=0, best=""))

    return told

"""Verification of an opened release in the process that serves: the golden samples run again.

A bit that flips in the memory of an application is seen only by the application's own session. A
thread runs a sample now and then, never within a call of `run`, and compares the answer with the
first answer of this process. An opened release whose answers changed is opened again.
"""

import time
from collections.abc import Mapping
from functools import partial

from edgepack.agent.runtime.own_answers import repeat, why_other
from edgepack.agent.runtime.sessions import Session, Tensor
from edgepack.agent.runtime.verification import FirstAnswers
from edgepack.agent.state.verification_settings import VerificationSettings
from edgepack.errors import DeviceError

FIRST_SHARE = 0.02
"""Share of the time until the first answers are known: they should come before a fault."""


class Verifier:
    """Runs the golden samples of a release on opened sessions of that release.

    Args:
        samples: Inputs of the samples.
        settings: Pace.
        now: Monotonic clock, seconds.

    Attributes:
        checked: Compared answers.
        other: Answers that differed from the first answers.
    """

    def __init__(
        self,
        samples: tuple[Mapping[str, Tensor], ...],
        settings: VerificationSettings,
        now: float,
    ) -> None:
        self.checked = self.other = 0
        self._samples = samples
        self._settings = settings
        self._first = FirstAnswers(answers=())
        self._number = 0
        self._next_at = now

    @property
    def is_learning(self) -> bool:
        """True until the first answers are known: they should come soon, before a fault."""
        is_on = bool(self._samples and self._settings.interval_s)
        return is_on and len(self._first.answers) < len(self._samples)

    def turn(self, session: Session) -> str | None:
        """Run a sample if due.

        Args:
            session: The release, opened.

        Returns:
            How the answer differs from the first answer; "" if equal; None if nothing was compared.
        """
        began = time.monotonic()
        if not self._samples or not self._settings.interval_s or began < self._next_at:
            return None
        is_first = self.is_learning
        share = max(self._settings.share, FIRST_SHARE) if is_first else self._settings.share
        because: str | None = None
        try:
            if is_first:
                self._begin(session)
            else:
                because = self._compare(session)
        except DeviceError as error:
            self.other += 1
            because = f"a golden sample failed: {error.problem}"
        pause_s = 0.0 if is_first else self._settings.interval_s / len(self._samples)
        self._next_at = began + max(pause_s, (time.monotonic() - began) / share)
        return because

    def run_again(self) -> None:
        """Make the sample due that differed: another session may answer as at first."""
        self._next_at = 0.0

    def _begin(self, session: Session) -> None:
        feeds = self._samples[len(self._first.answers)]
        repeated = repeat(partial(session.run, feeds))
        self._first = FirstAnswers(
            answers=(*self._first.answers, repeated.answer),
            worst=max(self._first.worst, repeated.worst),
        )

    def _compare(self, session: Session) -> str:
        because = why_other(self._first, self._number, session.run(self._samples[self._number]))
        self.checked += 1
        if because:
            self.other += 1
        else:
            self._number = (self._number + 1) % len(self._samples)
        return because

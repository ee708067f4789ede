"""Store of the device's own first answers to golden samples.

The key is that of a probe: bundle, variant, provider, runtime, drivers. With any of these changed,
other bits are no fault: the variant is probed again and gives new first answers.
"""

import logging
from collections.abc import Callable
from pathlib import Path

import msgspec

from edgepack.agent.runtime.verdicts import ProbeCacheKey
from edgepack.agent.runtime.verification import FirstAnswers, Verified
from edgepack.agent.state.state_file import StateFile
from edgepack.versions import Format, Version

log = logging.getLogger(__name__)

FIRST_ANSWERS_FILE = "first-answers.json"
MAX_KEPT = 32


class _Known(msgspec.Struct, frozen=True, kw_only=True):
    """First answers, and their circumstances."""

    circumstances: ProbeCacheKey
    first: FirstAnswers


class _Kept(msgspec.Struct, frozen=True, kw_only=True):
    """The file's content, the newest last."""

    known: tuple[_Known, ...]


FIRST_ANSWERS = Format("list of first answers", _Kept, Version(1, 0))


class FirstAnswersStore:
    """The first answers of a device, on the disk.

    Args:
        state_dir: The agent's state folder.
    """

    def __init__(self, state_dir: Path) -> None:
        self._file = StateFile(state_dir / FIRST_ANSWERS_FILE, FIRST_ANSWERS)
        try:
            found = self._file.load()
        except OSError as error:
            log.warning("first answers to golden samples cannot be read now: %s", error)
            found = None
        self._known = found.known if found else ()

    def verify(
        self, circumstances: ProbeCacheKey, run: Callable[[FirstAnswers | None], Verified]
    ) -> Verified:
        """Verify against the first answers of the same circumstances; keep new first answers.

        Args:
            circumstances: Key of the serving variant now.
            run: Runs the golden samples; without first answers, `run` makes them.
        """
        known = (one.first for one in self._known if one.circumstances == circumstances)
        result = run(next(known, None))
        if result.first is not None:
            new = _Known(circumstances=circumstances, first=result.first)
            self._known = (*self._known, new)[-MAX_KEPT:]
            try:
                if not self._file.is_sealed:
                    self._file.save(_Kept(known=self._known))
            except OSError as error:
                log.warning("first answers to golden samples cannot be kept: %s", error)
        return result

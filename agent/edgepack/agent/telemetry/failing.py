"""The agent's note on failing inferences, for its log and for `edgepack-agent status`."""

import contextlib
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from edgepack.agent.state.state_file import read_regular
from edgepack.agent.telemetry.outcomes import describe_failures, kinds_of
from edgepack.durable import write_file
from edgepack.text import counted
from edgepack.versions import Format, NewerVersionError, Version
from edgepack.wire.reports import Outcomes

log = logging.getLogger(__name__)

FAILING_FILE = "failing.json"


class Failing(msgspec.Struct, frozen=True, kw_only=True):
    """Failing inferences of a serving release.

    Attributes:
        model: The model's name.
        version: The release's version.
        outcomes: Outcomes of the most recent inferences.
        since: When the agent first saw that they fail, seconds since the epoch.
        previous: Version of the release to go back to; "" without one, or if the watch left it.
    """

    model: str
    version: str
    outcomes: Outcomes
    since: float
    previous: str = ""


class _Note(msgspec.Struct, frozen=True, kw_only=True):
    releases: dict[str, Failing]


_NOTE = Format("note on failing inferences", _Note, Version(1, 0))


def read_failing(state_dir: Path) -> Mapping[str, Failing]:
    """Return failing releases by digest, as the agent last saw them; none if unreadable."""
    try:
        content = read_regular(state_dir / FAILING_FILE)
        return _NOTE.decode(content).value.releases if content else {}
    except (OSError, ValueError, NewerVersionError):
        return {}


def failing_lines(failing: Failing) -> tuple[str, str]:
    """Return counts and shares as one line, and the remedy as another."""
    seen = failing.outcomes
    parts = (
        f"{count} {kind} ({count / max(1, seen.inferences):.1%})"
        for count, kind in kinds_of(seen)
        if count
    )
    remedy = f"look for the reason in the application's log and inputs{_way_back(failing)}"
    return f"of {counted(seen.inferences, 'recent inference')} {', '.join(parts)}", remedy


def _way_back(failing: Failing) -> str:
    if not failing.previous:
        return "; there is no right earlier release to go back to, so bring a repaired one"
    return (
        f"; to go back to {failing.previous}, roll back in the fleet, or run "
        f"edgepack-agent rollback {failing.model}"
    )


class FailingNote:
    """Keeps the note and logs when inferences begin to fail, fail more, or work again.

    Args:
        state_dir: The agent's state folder.
        wall: The time, seconds since the epoch.
    """

    def __init__(self, state_dir: Path, wall: Callable[[], float]) -> None:
        self._path, self._wall = state_dir / FAILING_FILE, wall
        self._known = self._written = dict(read_failing(state_dir))
        self._words: dict[str, str] = {}

    def note(self, seen: Mapping[str, Failing | None]) -> bool:
        """Note the recent inferences of all serving releases.

        Args:
            seen: Outcomes by digest; None where none ran since the agent started, so that the
                earlier note holds.

        Returns:
            Whether inferences of a release began to fail, fail more, or work again.
        """
        found: dict[str, Failing] = {}
        words: dict[str, str] = {}
        for digest, one in seen.items():
            before = self._known.get(digest)
            if one is None:
                if before is not None:
                    found[digest] = before
            elif said := describe_failures(one.outcomes):
                since = before.since if before else self._wall()
                found[digest], words[digest] = msgspec.structs.replace(one, since=since), said
                if said != self._words.get(digest):
                    log.warning("model=%s %s: %s; %s", one.model, one.version, *failing_lines(one))
            elif before is not None:
                log.info("model=%s %s: inferences work again", one.model, one.version)
        is_news = words != self._words
        self._known, self._words = found, words
        if is_news or found.keys() != self._written.keys():
            self.write()
        return is_news

    def write(self) -> None:
        """Write the note, if counts changed since it was last written."""
        if self._known != self._written:
            with contextlib.suppress(OSError):  # the note is for a person who looks
                write_file(self._path, _NOTE.encode(_Note(releases=self._known)), lasting=False)
                self._written = self._known

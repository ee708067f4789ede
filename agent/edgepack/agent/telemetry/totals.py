"""Totals of a device's inferences by release, which grow over restarts: the journal stores them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from edgepack.metrics.sums import ReleaseSums
from edgepack.metrics.table import RELEASE
from edgepack.text import printable
from edgepack.wire.telemetry import Telemetry

MAX_RELEASES = 16
"""Releases with totals: the newest. A release that comes back after more begins again."""
_MAX_NAME = 120


class Named(msgspec.Struct, frozen=True, kw_only=True):
    """Name of a release, as a process of the device stated the name."""

    model: str
    version: str


class ReleaseTotal(msgspec.Struct, frozen=True, kw_only=True):
    """Totals of a release on a provider.

    Attributes:
        model, version, digest, provider: The release.
        sums: Of all its inferences.
        memory_bytes, drift: As last measured; None if never.
    """

    model: str
    version: str
    digest: str
    provider: str
    sums: ReleaseSums
    memory_bytes: int | None = None
    drift: float | None = None

    @property
    def attributes(self) -> dict[str, str]:
        """Attributes of the metrics."""
        values = (self.model, self.version, self.digest[:12], self.provider)
        return dict(zip(RELEASE, values, strict=True))


def add_windows(
    totals: Sequence[ReleaseTotal], windows: Iterable[Telemetry], names: Mapping[str, Named]
) -> tuple[ReleaseTotal, ...]:
    """Return totals with further windows; the release of the last window comes last.

    Args:
        totals: Totals before.
        windows: Windows that no total contains.
        names: Names of releases by digest.
    """
    found = {(one.digest, one.provider): one for one in totals}
    for window in windows:
        key = (window.digest, window.provider)
        before = found.pop(key, None) or _begin(window, names.get(window.digest))
        found[key] = msgspec.structs.replace(
            before,
            sums=before.sums.plus(window),
            memory_bytes=window.memory_bytes or before.memory_bytes,
            drift=before.drift if window.drift is None else window.drift,
        )
    return tuple(found.values())[-MAX_RELEASES:]


def _begin(window: Telemetry, named: Named | None) -> ReleaseTotal:
    return ReleaseTotal(
        model=_short(named.model if named else ""),
        version=_short(named.version if named else ""),
        digest=_short(window.digest),
        provider=_short(window.provider),
        sums=ReleaseSums(since=window.window_start),
    )


def _short(text: str) -> str:
    return printable(text)[:_MAX_NAME]


def by_release(totals: Iterable[ReleaseTotal]) -> Iterator[tuple[dict[str, str], ReleaseSums]]:
    """Yield the sums with the attributes of their metrics."""
    for one in totals:
        yield one.attributes, one.sums

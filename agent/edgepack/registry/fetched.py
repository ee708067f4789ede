"""Bundles as arguments of commands, by path or by URL."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from edgepack.registry.reference import SCHEME
from edgepack.registry.way import DIRECTLY, Progress, Way


class Fetched(NamedTuple):
    """A bundle on this machine.

    Attributes:
        path: Place of the bundle on this machine.
        source: URL of the very same bundle, for other readers; "" for a bundle given by a path, or
            by a URL with a password or a query, which may be a secret.
    """

    path: Path
    source: str


@contextmanager
def fetched(
    place: str | Path, way: Way = DIRECTLY, progress: Progress = lambda _done, _all: None
) -> Iterator[Fetched]:
    """Yield a bundle on this machine: fetch a remote bundle for the block, use a path as given.

    Only completeness is verified; the user of the bundle verifies the signature.

    Args:
        place: `oci://…`, `https://…`, or a path.
        way: How to get there.
        progress: Called with the progress.

    Raises:
        EdgepackError: The bundle cannot be fetched.
    """
    if not is_elsewhere(place):
        yield Fetched(Path(place), "")
        return
    # Loaded where it is needed: urllib3 takes 0.06 s.
    from edgepack.registry.bundles import pull
    from edgepack.web.urls import shown_url

    with tempfile.TemporaryDirectory(prefix="edgepack-") as temporary:
        folder = Path(temporary) / "bundle"
        pulled = pull(str(place), folder, way=way, progress=progress)
        # Of a registry it names the digest. A URL that can be shown as it is holds no secret.
        is_plain = pulled.reference.startswith(SCHEME) or shown_url(str(place)) == str(place)
        yield Fetched(folder, pulled.reference if is_plain else "")


def is_elsewhere(place: str | Path) -> bool:
    """Return True if a place is a URL, not a path."""
    return str(place).startswith((SCHEME, "https://", "http://"))

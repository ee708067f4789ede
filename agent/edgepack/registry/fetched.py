"""Bundles that commands are given by a path, or by where they rest."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edgepack.registry.reference import SCHEME
from edgepack.registry.way import DIRECTLY, Progress, Way


@contextmanager
def fetched(
    place: str | Path, way: Way = DIRECTLY, progress: Progress = lambda _done, _all: None
) -> Iterator[Path]:
    """A bundle on this machine, for a while: what is elsewhere is fetched, a path stays as it is.

    Nothing is verified but that it is whole; who uses it does.

    Args:
        place: `oci://…`, `https://…`, or a path.
        way: How to get there.
        progress: Is told how far it is.

    Raises:
        EdgepackError: It cannot be fetched.
    """
    if not str(place).startswith((SCHEME, "https://", "http://")):
        yield Path(place)
        return
    # Loaded where it is needed: urllib3 takes 0.06 s.
    from edgepack.registry.bundles import pull

    with tempfile.TemporaryDirectory(prefix="edgepack-") as temporary:
        folder = Path(temporary) / "bundle"
        pull(str(place), folder, way=way, progress=progress)
        yield folder

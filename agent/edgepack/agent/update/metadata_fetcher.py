"""Fetcher of the fleet's metadata over HTTP, for metadata that the broker does not deliver.

A broker may have forgotten or withhold retained metadata; then the controller's answer does not
come either. Fetched metadata takes the same way as metadata from the broker: the agent verifies
both with the same rules.
"""

import logging
import threading
import time
from collections.abc import Callable

from edgepack.errors import TrustError
from edgepack.trust.repository import Cache, TrustedRepository
from edgepack.trust.roles import ROOT, file_name
from edgepack.trust.sources import Fetch

log = logging.getLogger(__name__)

PATIENCE_S = 20.0
"""How long the broker has to bring what is lacking."""
AGAIN_S = 300.0
"""Between two fetches."""
MAX_FILES = 48
MAX_BYTES = 768 * 1024
"""Of one fetch: less than the agent holds of files that it has not judged yet. The next fetch goes
on from there."""
_LOOK_S = 5.0


class MetadataFetcher:
    """Looks, in a thread of its own, whether something lacks.

    Args:
        source: Where to fetch.
        root: Root metadata that the device was enrolled with.
        cache: Accepted metadata of the device; only read here.
        is_lacking: Whether the device waits for metadata.
        put: Hands a file to the agent, by its name.
        wall: Clock, seconds since the epoch.
    """

    def __init__(
        self,
        source: Fetch,
        root: bytes,
        cache: Cache,
        *,
        is_lacking: Callable[[], bool],
        put: Callable[[str, bytes], None],
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._source, self._root, self._cache, self._wall = source, root, cache, wall
        self._is_lacking, self._put = is_lacking, put
        self._stopping = threading.Event()
        self._lacking_s = 0.0
        self._rest_s = 0.0
        self._problem = ""
        self._thread = threading.Thread(target=self._run, name="metadata", daemon=True)

    def start(self) -> None:
        """Start looking."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the checks; a running fetch continues."""
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.wait(_LOOK_S):
            self.look(_LOOK_S)

    def look(self, passed_s: float) -> None:
        """Fetch, if something has been lacking for long enough.

        Args:
            passed_s: Seconds since the last call.
        """
        self._rest_s = max(0.0, self._rest_s - passed_s)
        self._lacking_s = self._lacking_s + passed_s if self._is_lacking() else 0.0
        if self._lacking_s < PATIENCE_S or self._rest_s > 0:
            return
        self._rest_s = AGAIN_S
        try:
            found, problem = fetch_newer(self._source, self._root, self._cache, self._wall)
        except OSError as error:
            found, problem = {}, f"what is kept cannot be read: {error.strerror}"
        if problem != self._problem:
            log.log(logging.WARNING if problem else logging.INFO, "metadata by HTTP: %s", problem)
            self._problem = problem
        for name, content in found.items():
            self._put(name, content)


def fetch_newer(
    source: Fetch, root: bytes, cache: Cache, wall: Callable[[], float]
) -> tuple[dict[str, bytes], str]:
    """Fetch and evaluate metadata newer than the known metadata, without storing any.

    Args:
        source: Where to fetch.
        root: Root metadata that is trusted from the start.
        cache: Known metadata.
        wall: Clock, seconds since the epoch.

    Returns:
        The files by name, in the order of verification, and the failure, if any.
    """
    fetched: dict[str, bytes] = {}

    def fetch(role: str, version: int | None, max_bytes: int) -> bytes | None:
        content = source(role, version, max_bytes)
        if content is not None:
            fetched[file_name(role, version if role == ROOT else None)] = content
            if len(fetched) > MAX_FILES or sum(map(len, fetched.values())) > MAX_BYTES:
                raise TrustError("there is more than is fetched at once")
        return content

    try:
        repository = TrustedRepository(root, _Overlay(cache), wall=wall)
        repository.refresh(fetch)
        repository.load_delegated(fetch)
    except TrustError as error:
        return fetched, error.problem
    return fetched, ""


class _Overlay:
    """A cache that keeps new files in memory until the fetch is complete."""

    def __init__(self, below: Cache) -> None:
        self._below = below
        self._new: dict[str, bytes] = {}

    def load(self, name: str) -> bytes | None:
        return self._new.get(name) or self._below.load(name)

    def save(self, name: str, content: bytes) -> None:
        self._new[name] = content

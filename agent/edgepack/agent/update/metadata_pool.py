"""Metadata that came and was not judged yet: bounded, and believed by nobody."""

from collections.abc import Callable

from edgepack.trust.roles import MAX_METADATA_BYTES, file_name, read_file_name

MAX_FILES = 64
MAX_BYTES = 1024 * 1024


class MetadataPool:
    """The newest of each file, as received; the oldest arrivals go first when there are too many.

    Attributes:
        has_news: Whether a file arrived since the last query.
    """

    def __init__(self) -> None:
        self._files: dict[str, bytes] = {}
        self._last = ""
        self.has_news = False

    def put(self, name: str, content: bytes) -> bool:
        """Store a file; return False for an impossible name."""
        if read_file_name(name) is None or not 0 < len(content) <= MAX_METADATA_BYTES:
            return False
        self._files.pop(name, None)
        self._files[name] = content
        while len(self._files) > MAX_FILES or sum(map(len, self._files.values())) > MAX_BYTES:
            del self._files[next(iter(self._files))]
        self.has_news = True
        return True

    def __call__(self, role: str, version: int | None, max_bytes: int) -> bytes | None:
        """Give a file to be judged: a root by its version, of all else the newest that came."""
        for name in (file_name(role, version), file_name(role)):
            content = self._files.get(name)
            if content is not None and len(content) <= max_bytes:
                self._last = name
                return content
        return None

    def forget_last(self) -> bool:
        """Drop the file that was returned last, accepted or rejected for good.

        Returns:
            Whether there was a file.
        """
        last, self._last = self._last, ""
        return self._files.pop(last, None) is not None

    def forget_accepted(self, load: Callable[[str], bytes | None]) -> None:
        """Drop files that the cache holds by now."""
        for name in [name for name, content in self._files.items() if load(name) == content]:
            del self._files[name]

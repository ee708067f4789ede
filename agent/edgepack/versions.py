"""The one rule for what lasts or travels and has a version: `"v"`, and `"minor"` where it grew.

    older         migrated, one version after the other, and then read
    newer minor   read; what is unknown in it is kept when it is written again
    newer major   refused, and left as it is

A major version changes when an older reader would do wrong; a minor one when something was added
that an older reader may pass over.
"""

from collections.abc import Callable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from edgepack.errors import EdgepackError

T = TypeVar("T", bound=msgspec.Struct)
Migration = Callable[[dict[str, Any]], dict[str, Any]]
"""Makes the document of the next version from one of its own."""

BARE = "bare"
"""Key of what a first document held that was no object, when it is migrated."""
FIRST = 1
"""A document that names no version was written before documents had any."""


class NewerVersionError(EdgepackError):
    """A newer edgepack wrote this; it is not read, and nothing is written over it."""


class Version(NamedTuple):
    """A version; they compare as one expects."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


def version_of(document: Mapping[str, Any]) -> Version:
    """The version that a document names.

    Raises:
        ValueError: It names none that could be one.
    """
    major, minor = document.get("v", FIRST), document.get("minor", 0)
    for number in (major, minor):
        if not isinstance(number, int) or isinstance(number, bool) or number < 0:
            raise ValueError(f"{number!a:.40} is no version")
    return Version(major, minor)


class Document(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """What was read.

    Attributes:
        value: As far as it is understood here.
        unknown: Keys of a newer minor version, to be written again with it.
    """

    value: T
    unknown: dict[str, Any] = {}


class Format(Generic[T]):
    """One kind of document.

    Args:
        title: What it is called, e.g. "journal".
        kind: The type of its content.
        version: The version that is written here.
        migrations: By major version: what makes the next one of it.
    """

    def __init__(
        self,
        title: str,
        kind: type[T],
        version: Version,
        *,
        migrations: Mapping[int, Migration] | None = None,
    ) -> None:
        self.title = title
        self.version = version
        self._kind = kind
        self._migrations = migrations or {}
        self._fields = frozenset(field.encode_name for field in msgspec.structs.fields(kind))

    def decode(self, content: bytes) -> Document[T]:
        """Reads a document.

        Raises:
            NewerVersionError: Its major version is newer.
            ValueError: It is damaged: no JSON, or not what its version holds.
        """
        try:
            found = msgspec.json.decode(content)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ValueError(str(error)) from error
        return self.convert(found)

    def convert(self, found: Any) -> Document[T]:
        """The same for a document that is decoded already.

        Raises:
            NewerVersionError: Its major version is newer.
            ValueError: It is not what its version holds.
        """
        document = self.migrate(found if isinstance(found, dict) else {BARE: found})
        try:
            value = msgspec.convert(document, self._kind, str_keys=True)
        except (msgspec.ValidationError, RecursionError) as error:
            raise ValueError(str(error)) from error
        unknown = {key: document[key] for key in document if key not in self._fields and key != "v"}
        return Document(value=value, unknown=unknown)

    def migrate(self, document: dict[str, Any]) -> dict[str, Any]:
        """Brings an older document up to the version of here; others come back as they are.

        Raises:
            NewerVersionError: Its major version is newer.
            ValueError: It cannot be migrated.
        """
        found = version_of(document)
        if found.major > self.version.major:
            raise NewerVersionError(
                f"the {self.title} is of version {found}, this edgepack reads {self.version}",
                remedy="update edgepack",
            )
        for major in range(found.major, self.version.major):
            try:
                document = self._migrations[major](document) | {"v": major + 1, "minor": 0}
            except KeyError as error:
                raise ValueError(f"it lacks {error}, which version {major} has") from error
            except (TypeError, AttributeError, ValueError) as error:
                raise ValueError(f"it is not what version {major} holds: {error}") from error
        return document

    def encode(self, value: T, unknown: Mapping[str, Any] | None = None) -> bytes:
        """Writes a document, with what was unknown in the one that was read.

        What stays unknown keeps its minor version too, so that who wrote it finds it.
        """
        version = {"v": self.version.major, "minor": self.version.minor}
        known = msgspec.to_builtins(value, builtin_types=())
        return msgspec.json.encode(version | dict(unknown or {}) | known)

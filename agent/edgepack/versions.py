"""Versions of stored and sent documents: `"v"` (major) and `"minor"`.

    newer minor   read; unknown keys are kept when the document is written again
    newer major   rejected and left unchanged

A new major version marks a change that an older reader would get wrong; a new minor version marks
an addition that an older reader may ignore.
"""

from collections.abc import Mapping
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from edgepack.decoding import convert_value, decode_json
from edgepack.errors import EdgepackError

T = TypeVar("T", bound=msgspec.Struct)


class NewerVersionError(EdgepackError):
    """A newer edgepack wrote this document; the document is neither read nor overwritten."""


class Version(NamedTuple):
    """A version; versions compare in the natural order."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


def version_of(document: Mapping[str, Any]) -> Version:
    """Return the version of a document; 1.0 if the document names none.

    Raises:
        ValueError: `v` or `minor` is not a version number.
    """
    major, minor = document.get("v", 1), document.get("minor", 0)
    for number, least in ((major, 1), (minor, 0)):
        if not isinstance(number, int) or isinstance(number, bool) or number < least:
            raise ValueError(f"{number!a:.40} is not a version")
    return Version(major, minor)


class Document(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """Document as read.

    Attributes:
        value: Value, as known to this edgepack.
        unknown: Keys of a newer minor version, to be written again with the value.
    """

    value: T
    unknown: dict[str, Any] = {}


class Format(Generic[T]):
    """Format of a kind of document.

    Args:
        title: Name of the document, e.g. "journal".
        kind: The type of its content.
        version: The version that is written here.
    """

    def __init__(self, title: str, kind: type[T], version: Version) -> None:
        self.title = title
        self.version = version
        self._kind = kind
        self._fields = frozenset(field.encode_name for field in msgspec.structs.fields(kind))

    def decode(self, content: bytes) -> Document[T]:
        """Read a document.

        Raises:
            NewerVersionError: Its major version is newer.
            ValueError: The document is damaged: not JSON, or not valid for its version.
        """
        try:
            found = decode_json(content)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ValueError(str(error)) from error
        return self.convert(found)

    def convert(self, found: Any) -> Document[T]:
        """Return the same for a document that is decoded already.

        Raises:
            NewerVersionError: Its major version is newer.
            ValueError: The document is not valid for its version.
        """
        try:
            document = convert_value(found, dict[str, Any])
            if (version := version_of(document)).major > self.version.major:
                raise NewerVersionError(
                    f"the {self.title} is of version {version}, this edgepack reads {self.version}",
                    remedy="update edgepack",
                )
            value = convert_value(document, self._kind, str_keys=True)
        except (msgspec.ValidationError, RecursionError) as error:
            raise ValueError(str(error)) from error
        unknown = {key: document[key] for key in document if key not in self._fields and key != "v"}
        return Document(value=value, unknown=unknown)

    def encode(self, value: T, unknown: Mapping[str, Any] | None = None) -> bytes:
        """Write a document, with the unknown keys of the document as read.

        Unknown keys keep their minor version, so that their writer finds the keys.
        """
        version = {"v": self.version.major, "minor": self.version.minor}
        known = msgspec.to_builtins(value, builtin_types=())
        return msgspec.json.encode(version | dict(unknown or {}) | known)

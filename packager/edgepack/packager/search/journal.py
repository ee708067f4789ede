"""Journal of a search's measurements on disk: an interrupted search continues. Conditions of a
search.

The first line holds the version: a journal of another version is left unchanged, and not used. Then
follows a line of JSON for each measurement, with its own checksum and with the digest of everything
that the measurement depends on (`context`): model, samples, profile, tools, processor. Lines of
another context are left alone and not read. A line that is cut short or changed is passed over.

Nothing is written before the second measurement of a context: searches that end with their first
candidates leave no file.
"""

import hashlib
import os
from pathlib import Path
from typing import TypeVar

import msgspec

from edgepack.decoding import decode_json
from edgepack.durable import write_file
from edgepack.packager.search.search_target import SearchTarget
from edgepack.packager.search.time_limit import TimeLimit
from edgepack.text import counted

_T = TypeVar("_T")

_VERSION = 2
"""Raised when keys or values mean something else. The first one had no line of its own."""


class _Header(msgspec.Struct, frozen=True, kw_only=True):
    journal_version: int


class _Entry(msgspec.Struct, frozen=True, kw_only=True):
    context: str
    key: str
    value: msgspec.Raw


class _Line(msgspec.Struct, frozen=True, kw_only=True):
    sha256: str
    entry: msgspec.Raw


class Journal:
    """The measurements of a profile's search.

    Args:
        path: The file; need not exist. None writes nothing.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._is_of_another_version = False
        self._known: dict[tuple[str, str], bytes] = {}
        self._waiting: list[bytes] = []
        self._begun: set[str] = set()
        self._is_started = False
        self.damaged_lines = 0
        if path is not None and path.exists():
            self._read(path.read_bytes())

    def recall(self, context: str, key: str, kind: type[_T]) -> _T | None:
        """Return a measurement that was made before; None where there is none."""
        raw = self._known.get((context, key))
        if raw is None:
            return None
        try:
            return decode_json(raw, kind)
        except msgspec.ValidationError:  # it means something else
            return None

    def keep(self, context: str, key: str, value: object) -> None:
        """Write a measurement to disk; a context's first measurement waits for the second."""
        raw = msgspec.json.encode(value)
        self._known[context, key] = raw
        if self._path is None or self._is_of_another_version:
            return
        entry = msgspec.json.encode(_Entry(context=context, key=key, value=msgspec.Raw(raw)))
        line = _Line(sha256=hashlib.sha256(entry).hexdigest(), entry=msgspec.Raw(entry))
        self._waiting.append(msgspec.json.encode(line) + b"\n")
        if self._is_started or context in self._begun:
            self._flush(self._path)
        self._begun.add(context)

    def write_out(self) -> None:
        """Write the waiting first measurement: there will be no second."""
        if self._path is not None and self._waiting:
            self._flush(self._path)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes about the file for a person."""
        if self._is_of_another_version:
            return (
                f"The search's journal {self._path} is of another version: nothing of it was "
                "used, and nothing was added. Delete it to have measurements kept again.",
            )
        if not self.damaged_lines:
            return ()
        return (
            f"Passed over and measured again: {counted(self.damaged_lines, 'damaged line')} of "
            f"{self._path}.",
        )

    def _flush(self, path: Path) -> None:
        if self._is_started:
            with path.open("ab") as file:
                if not _ends_with_newline(path):
                    file.write(b"\n")  # the line before was cut short
                file.write(b"".join(self._waiting))
                file.flush()
                os.fsync(file.fileno())
        else:
            path.parent.mkdir(exist_ok=True)
            header = msgspec.json.encode(_Header(journal_version=_VERSION)) + b"\n"
            write_file(path, b"".join((header, *self._waiting)))
        self._waiting.clear()
        self._is_started = True

    def _read(self, content: bytes) -> None:
        header, *lines = content.splitlines() or (b"",)
        self._is_started = _version_of(header) == _VERSION
        self._is_of_another_version = not self._is_started
        if self._is_of_another_version:
            return
        for text in lines:
            try:
                line = decode_json(text, _Line)
                entry = decode_json(line.entry, _Entry)
            except (msgspec.DecodeError, UnicodeDecodeError):
                self.damaged_lines += bool(text.strip())
                continue
            if hashlib.sha256(line.entry).hexdigest() != line.sha256:
                self.damaged_lines += 1
                continue
            self._known[entry.context, entry.key] = bytes(entry.value)


def _version_of(header: bytes) -> int | None:
    try:
        return decode_json(header, _Header).journal_version
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def journal_folder(output: Path) -> Path:
    """Return the folder of journals next to a bundle's output."""
    return output.with_name(f"{output.name}.search")


class SearchConditions(msgspec.Struct, kw_only=True):
    """Conditions of a search: limits, journal, and end.

    Attributes:
        limit: Ends the search in time.
        journal: Stores measurements.
        context: Digest of all that the measurements depend on.
        label: See `Candidate`.
        held_out: Number of samples for the result after the search.
        target: When the search may end.
    """

    limit: TimeLimit
    journal: Journal
    context: str = ""
    label: str = ""
    held_out: int = 0
    target: SearchTarget = msgspec.field(default_factory=SearchTarget)

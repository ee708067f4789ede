"""A row of the table of parsers."""

from collections.abc import Callable
from dataclasses import dataclass

from edgepack.errors import EdgepackError

Read = Callable[[bytes], object]


@dataclass(frozen=True, kw_only=True, repr=False)
class Parser:
    """One parser.

    Attributes:
        name: For people.
        seeds: Valid inputs.
        read: Reads bytes.
        errors: What it may raise; nothing else, and nothing where it is empty.
    """

    name: str
    seeds: tuple[bytes, ...]
    read: Read
    errors: tuple[type[EdgepackError] | type[OSError], ...]

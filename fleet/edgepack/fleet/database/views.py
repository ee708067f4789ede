"""Documents from rows."""

from typing import Any, TypeVar

import msgspec

from edgepack.fleet.database.schema import Base

T = TypeVar("T", bound=msgspec.Struct)


def view_of(kind: type[T], row: Base, **more: Any) -> T:
    """Return a document with the row's values of the same names, and with more fields."""
    names = [name for name in kind.__struct_fields__ if name not in more and hasattr(row, name)]
    return kind(**{name: getattr(row, name) for name in names}, **more)

"""Specification of a model's inputs and outputs."""

from collections.abc import Sequence

import msgspec


class Lookup(msgspec.Struct, frozen=True, kw_only=True):
    """A table with rows that an input names; negative numbers count from its end.

    Attributes:
        rows: Number of rows.
        node: The node that reads the table, in words.
    """

    rows: int
    node: str


class TensorSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Name, element type and shape of an input or output.

    Attributes:
        name: Name in the graph.
        dtype: NumPy's name (`float32`, `int64`, `bool`).
        shape: An entry per axis: an int for a fixed size, else the symbol's name, or `?` for an
            unnamed size.
        lookup: The table with rows that the values name, if any.
    """

    name: str
    dtype: str
    shape: tuple[str | int, ...]
    lookup: Lookup | None = None

    @property
    def is_static(self) -> bool:
        """True if every axis is fixed."""
        return all(isinstance(size, int) for size in self.shape)

    def takes(self, shape: Sequence[int]) -> bool:
        """Return True if an array of that shape fits; an open axis takes any size."""
        return len(shape) == len(self.shape) and all(
            isinstance(want, str) or size == want
            for size, want in zip(shape, self.shape, strict=True)
        )

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{','.join(str(size) for size in self.shape)}]"

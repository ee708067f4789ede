"""Specification of a model's inputs and outputs."""

from collections.abc import Sequence

import msgspec


class Lookup(msgspec.Struct, frozen=True, kw_only=True):
    """A table whose rows an input names; negative numbers count from its end.

    Attributes:
        rows: How many it has.
        node: Which node reads it, in words.
    """

    rows: int
    node: str


class TensorSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Name, element type and shape of an input or output.

    Attributes:
        name: As the graph names it.
        dtype: NumPy's name (`float32`, `int64`, `bool`).
        shape: One entry an axis: an int where it is fixed, else the symbol's name, or `?`
            where the model names none.
        lookup: The table whose rows its values name, if they do.
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

"""Where a model tells text, step by step (CTC) or token by token."""

from typing import Literal

import msgspec


class TextHead(msgspec.Struct, frozen=True, kw_only=True):
    """An output whose best class of each step, repetitions merged and blanks dropped, is text.

    Attributes:
        output: [1, steps, classes] or [steps, 1, classes]; whole numbers, where the classes of
            steps, or tokens, are chosen already.
        blank: The class that is no character; None until the float model's values tell, and of
            tokens, which are a text as they stand.
        spaces: The classes that are spaces, where they are known: at the ends of a text they are
            no part of it.
        is_of_tokens: Whether it gives tokens.
        told_by: What told it: the graph, its metadata, or a person.
    """

    output: str
    blank: int | None = None
    spaces: tuple[int, ...] = ()
    is_of_tokens: bool = False
    told_by: Literal["graph", "metadata", "[outputs]"] = "graph"

    @property
    def outputs(self) -> tuple[str, ...]:
        """The one output."""
        return (self.output,)

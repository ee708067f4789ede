"""Output with text, step by step (CTC)."""

from typing import Any

import msgspec

from edgepack.decoding import convert_value
from edgepack.tasks.description import Source, TaskOutputs


class TextHead(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An output with text: the best class of each step, repetitions merged and blanks dropped.

    Attributes:
        output: [1, steps, classes] or [steps, 1, classes]; whole numbers, where the classes of
            steps are chosen already, or characters without a blank.
        empty: Of characters, the classes of nothing that is read, as behind the end of a text.
        blank: The blank class; None until the float model's values decide, and for characters.
        spaces: The classes of spaces, if known: spaces at the ends of a text do not count.
        ignores_spaces: Spaces within a text do not count either.
        source: How that is known.
    """

    output: str
    blank: int | None = None
    empty: tuple[int, ...] = ()
    spaces: tuple[int, ...] = ()
    ignores_spaces: bool = False
    source: Source = "graph"

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs, a single name."""
        return (self.output,)

    @classmethod
    def of(cls, part: TaskOutputs) -> "TextHead":
        """Return the head that a part of a description states."""
        stated = {**part.settings, "output": part.outputs[0], "source": part.source}
        return convert_value(stated, cls)

    @property
    def part(self) -> TaskOutputs:
        """Return this head as a part of a description."""
        stated: dict[str, Any] = msgspec.to_builtins(self)
        settings = {key: stated[key] for key in stated if key not in ("output", "source")}
        return TaskOutputs(task="text", outputs=self.outputs, source=self.source, settings=settings)

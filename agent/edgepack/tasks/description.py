"""Description of a model: meaning of its inputs and outputs, and source of this knowledge.

The build makes the description, `edgepack.toml` may declare parts, and manifest and report carry
the result.
"""

from collections.abc import Collection
from typing import Annotated, Any, Literal

import msgspec
from msgspec.structs import replace

from edgepack.tasks.inputs import (
    MAX_NAME,
    DescribedInput,
    PageInput,
    PictureInput,
    PromptInput,
    SoundInput,
    TextInput,
    TokenInput,
)

Source = Literal["declared", "graph", "metadata", "values", "unknown"]
"""How a meaning is known: from a person, the graph, the model's metadata, the float model's values;
`unknown` where nothing tells it."""

MAX_PARTS = 256
MAX_CLASS_NAMES = 32_768
"""A recognizer of Chinese has 18,385 characters."""

MAX_CLASS_NAME = 100

IGNORED = "ignored"
SELECTION = "selection"
UNKNOWN = "unknown"
OWN = "own"
GUESSED_FROM = "guessed_from"
"""Setting of a task that was guessed by the values of few samples: how many."""

NOT_EVALUATED = (IGNORED, SELECTION)
"""Tasks whose outputs do not tell how near a model is to another."""

_Name = Annotated[str, msgspec.Meta(max_length=MAX_NAME)]
_ClassName = Annotated[
    str, msgspec.Meta(max_length=MAX_CLASS_NAME, pattern=r"\A[^\x00-\x1f\x7f-\x9f]*\Z")
]
ClassNames = Annotated[tuple[_ClassName, ...], msgspec.Meta(max_length=MAX_CLASS_NAMES)]


class TaskOutputs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Outputs that a task evaluates together.

    Attributes:
        task: Name of the task, a key of `tasks.table.TASKS`.
        outputs: Names of the outputs, in the order of their roles.
        source: How that is known.
        settings: Values of the task's settings struct that differ from its defaults.
        class_names: Names of classes in their order; empty if unknown.
    """

    task: Annotated[str, msgspec.Meta(max_length=40)]
    outputs: Annotated[tuple[_Name, ...], msgspec.Meta(min_length=1, max_length=256)]
    source: Source = "unknown"
    settings: dict[str, Any] = {}
    class_names: ClassNames = ()

    def class_name(self, number: int) -> str:
        """Return the name of a class: `'cat'`, or `class 3` if its name is not known."""
        if 0 <= number < len(self.class_names) and self.class_names[number]:
            return f"'{self.class_names[number]}'"
        return f"class {number}"

    def column(self, place: int, count: int) -> str:
        """Return the name of a value in a row: `'speed'`, `column 3`, or `value` for a single
        column.
        """
        if place < len(self.class_names) and self.class_names[place]:
            return f"'{self.class_names[place]}'"
        return "value" if count == 1 else f"column {place}"

    def without_settings(self) -> "TaskOutputs":
        """Return the same outputs with the settings of no task."""
        return TaskOutputs(task=self.task, outputs=self.outputs, source=self.source)


class ModelDescription(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Meaning of a model's inputs and outputs.

    Attributes:
        parts: Outputs by task; no output is in two parts.
        inputs: Inputs whose preparation is known; an input that takes arrays as they are is not
            here.

    Example:
        ```python
        from edgepack.agent import ModelDescription, open_model

        with open_model("defects") as model:
            described: ModelDescription = model.description
            print(described.picture, described.parts[0].class_names)
        ```
    """

    parts: Annotated[tuple[TaskOutputs, ...], msgspec.Meta(max_length=MAX_PARTS)] = ()
    inputs: Annotated[tuple[DescribedInput, ...], msgspec.Meta(max_length=MAX_PARTS)] = ()

    @property
    def picture(self) -> PictureInput | None:
        """Return the input that takes a picture, the first; None without such an input."""
        return next((one for one in self.inputs if isinstance(one, PictureInput)), None)

    @property
    def page(self) -> PageInput | None:
        """Return the input that takes a picture of any size; None without such an input."""
        return next((one for one in self.inputs if isinstance(one, PageInput)), None)

    @property
    def text(self) -> TextInput | None:
        """Return the input that takes a text, for a vector; None without such an input."""
        return next((one for one in self.inputs if isinstance(one, TextInput)), None)

    @property
    def sound(self) -> SoundInput | None:
        """Return the input that takes a sound, for its text; None without such an input."""
        return next((one for one in self.inputs if isinstance(one, SoundInput)), None)

    @property
    def prompt(self) -> PromptInput | None:
        """Return the input that takes a text, for another text; None without such an input."""
        return next((one for one in self.inputs if isinstance(one, PromptInput)), None)

    @property
    def token_counts(self) -> dict[str, int]:
        """Return the number of tokens of each input that takes tokens."""
        kinds = (TokenInput, TextInput, PromptInput)
        return {one.name: one.vocabulary for one in self.inputs if isinstance(one, kinds)}

    @property
    def outputs(self) -> tuple[str, ...]:
        """Return the outputs that are described, in order."""
        return tuple(name for part in self.parts for name in part.outputs)

    def task_of(self, output: str) -> str:
        """Return the task that evaluates an output, `unknown` where none is stated."""
        return next((part.task for part in self.parts if output in part.outputs), UNKNOWN)

    def part_of(self, task: str) -> TaskOutputs | None:
        """Return the first part that a task evaluates, or None."""
        return next((part for part in self.parts if part.task == task), None)

    def outputs_of(self, *tasks: str) -> tuple[str, ...]:
        """Return the outputs that some tasks evaluate, in order."""
        return tuple(name for part in self.parts if part.task in tasks for name in part.outputs)

    def evaluated(self, names: Collection[str]) -> tuple[str, ...]:
        """Return the outputs among `names` that are evaluated, in order."""
        return tuple(name for name in names if self.task_of(name) not in NOT_EVALUATED)

    def without(self, names: Collection[str]) -> "ModelDescription":
        """Return the description without the parts that have any of some outputs."""
        parts = tuple(part for part in self.parts if not set(part.outputs) & set(names))
        return replace(self, parts=parts)

    def with_parts(self, *parts: TaskOutputs) -> "ModelDescription":
        """Return the description with more parts; outputs that are described already stay so."""
        added = tuple(part for part in parts if set(self.outputs).isdisjoint(part.outputs))
        return replace(self, parts=self.parts + added)


NOTHING_KNOWN = ModelDescription()

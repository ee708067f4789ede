"""Recognizers of tasks: each task's folder here may have a `recognize.py`.

`recognize(name, values)` in that file takes an output's name and the float model's values, one
array a sample, and returns the output as a part of a description, or None.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec

from edgepack.tasks.arrays import Outputs, Tensor
from edgepack.tasks.description import TaskOutputs
from edgepack.tasks.table import TASKS

Recognize = Callable[[str, Sequence[Tensor]], TaskOutputs | None]

_PACKAGE = __package__


@cache
def _recognizers() -> tuple[Recognize, ...]:
    """Return the recognizers in the order of the tasks."""
    folders = (f"{_PACKAGE}.{name}" for name in TASKS)
    packages = (name for name in folders if (spec := find_spec(name)) and spec.parent == name)
    return tuple(
        import_module(f"{name}.recognize").recognize
        for name in packages
        if find_spec(f"{name}.recognize")
    )


def recognize(expected: Sequence[Outputs], names: Sequence[str]) -> Iterator[TaskOutputs]:
    """Yield the outputs that a task's recognizer recognizes.

    Args:
        expected: The float model's outputs, one dict a sample.
        names: Outputs of unknown meaning.
    """
    for name in names:
        values = [outputs[name] for outputs in expected]
        found = (part for one in _recognizers() if (part := one(name, values)) is not None)
        yield from (part for part in [next(found, None)] if part is not None)

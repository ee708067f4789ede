"""Measure outputs of which the user's own function decides at the build.

The function does not run on a device. There, and where an agreement is needed beside the function's
verdict, the values are measured as those of unknown meaning, and the words say so.
"""

from collections.abc import Sequence
from typing import Self

from msgspec.structs import replace

from edgepack.tasks.arrays import Outputs
from edgepack.tasks.contract import Agreement, Expected, Task
from edgepack.tasks.description import OWN, TaskOutputs
from edgepack.tasks.unknown.measure import TASK as UNKNOWN_TASK

NOT_HERE = "the user's metric does not run on a device"


class OwnOutputs:
    """The float model's values on some samples: an `Expected`."""

    def __init__(self, values: Expected) -> None:
        self._values = values

    def of(self, indices: Sequence[int]) -> Self:
        """Return the same with some of the samples."""
        return type(self)(self._values.of(indices))

    def measure(self, got: Sequence[Outputs]) -> Agreement:
        """Measure the values of other outputs on the same samples, in the same order."""
        found = self._values.measure(got)
        return replace(found, task=OWN, words=f"{found.words} ({NOT_HERE})")


class Own(Task):
    """Outputs of which the user's own function decides: a `Task`."""

    name = OWN
    words = "what --metric or --labels measure"
    items = "values"
    is_decision = False

    def open(self, part: TaskOutputs, expected: Sequence[Outputs]) -> OwnOutputs:
        """Prepare the comparison with the float model's outputs, one dict a sample."""
        return OwnOutputs(UNKNOWN_TASK.open(part.without_settings(), expected))


TASK = Own()

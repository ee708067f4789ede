"""Fixed shapes of stages: whether graphs take them, and which inputs are larger."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from edgepack.agent.runtime.sessions import SessionTensor
from edgepack.errors import BuildError
from edgepack.packager.stages.pipeline_file import PIPELINE_FILE, StageSource
from edgepack.pictures.decode import MAX_PIXELS
from edgepack.tasks.arrays import Tensor

Sizes = Sequence[int | str]

_MOST_VALUES = 3 * MAX_PIXELS
"""Values of the largest picture that is decoded."""


def format_sizes(shape: Sizes) -> str:
    """Return a shape for a person; `?` is a free axis without a name."""
    return f"[{', '.join(str(size) or '?' for size in shape)}]"


def sizes_differ(have: Sizes, want: Sizes) -> bool:
    """Return True if no tensor has both shapes."""
    return len(have) != len(want) or any(
        isinstance(one, int) and isinstance(other, int) and one != other
        for one, other in zip(have, want, strict=True)
    )


def check_shapes(
    path: Path, stage: StageSource, inputs: Sequence[SessionTensor], given: Mapping[str, Sizes]
) -> None:
    """Check the shapes that a pipeline's file fixes.

    Args:
        path: The file.
        stage: The stage.
        inputs: Inputs of its graph.
        given: By input the shape of the tensor that the input is wired to, where it is known.

    Raises:
        BuildError: The graph has no such input, or the shape does not fit.
    """
    declared = {one.name: one.shape for one in inputs}
    for name, shape in stage.shapes.items():
        found_in = f"{path}, [[stage]] {stage.name}, shape"
        if name not in declared:
            raise BuildError(
                f"the graph of stage '{stage.name}' has no input '{name}'",
                found_in=found_in,
                remedy=f"its inputs are {', '.join(declared)}",
            )
        said = f"the shape of input '{name}' of stage '{stage.name}'"
        for known in (declared[name], given.get(name, declared[name])):
            if sizes_differ(shape, known):
                raise BuildError(
                    f"{said} is {format_sizes(shape)}, and {format_sizes(known)} is needed",
                    found_in=found_in,
                    remedy="keep the numbers, and replace each name or ? by a size",
                )
        if math.prod(shape) > _MOST_VALUES:
            raise BuildError(
                f"{said} has {math.prod(shape):,} values, and may have {_MOST_VALUES:,}",
                found_in=found_in,
                remedy="give the size of your largest page, or your longest line",
            )


def check_fixed(stage: StageSource, inputs: Sequence[SessionTensor], profile: str) -> None:
    """Check that a profile with fixed shapes finds them all.

    Args:
        stage: The stage.
        inputs: Inputs of its graph.
        profile: Name of the profile.

    Raises:
        BuildError: An axis of an input is free.
    """
    for one in inputs:
        if one.name not in stage.shapes and any(isinstance(size, str) for size in one.shape):
            sizes = ["…" if isinstance(size, str) else str(size) for size in one.shape]
            sizes[0] = sizes[0].replace("…", "1")
            raise BuildError(
                f"stage '{stage.name}', profile '{profile}': the profile needs fixed shapes, and "
                f"input '{one.name}' has {format_sizes(one.shape)}",
                found_in=f"[[stage]] {stage.name}",
                remedy=f"add shape = {{ {one.name} = [{', '.join(sizes)}] }} there, with your "
                f"sizes; or another profile for '{stage.name}': [[variant]] in a {PIPELINE_FILE}",
            )


class LargestInputs:
    """Counts the inputs of stages that are larger than the stages' fixed shapes.

    Args:
        stages: The stages.
    """

    def __init__(self, stages: Sequence[StageSource]) -> None:
        self._fixed = {
            (one.name, name): shape for one in stages for name, shape in one.shapes.items()
        }
        self._seen: dict[tuple[str, str], list[tuple[int, ...]]] = {}

    def note(self, stage: str, given: Mapping[str, Tensor]) -> None:
        """Take what a graph with free shapes is given; lines that go together end in zeros."""
        for name, value in given.items():
            if (stage, name) in self._fixed:
                self._seen.setdefault((stage, name), []).append(_filled(value))

    def describe(self, stage: str) -> list[str]:
        """Return a sentence for each input of a stage that is larger than its fixed shape."""
        told = []
        for (name, tensor), shapes in self._seen.items():
            fixed = self._fixed[name, tensor]
            larger = [one for one in shapes if any(a > b for a, b in zip(one, fixed, strict=True))]
            if name == stage and larger:
                most = [max(sizes) for sizes in zip(*larger, strict=True)]
                told.append(
                    f"Stage '{stage}' has {format_sizes(fixed)} for input '{tensor}', and "
                    f"{len(larger)} of its {len(shapes)} held-out inputs are larger, up to "
                    f"{format_sizes(most)}: they are shrunk to fit."
                )
        return told


def _filled(value: Tensor) -> tuple[int, ...]:
    """Return the sizes of a tensor without the zeros at the ends of its axes."""
    axes = set(range(value.ndim))
    used = (value.any(axis=tuple(axes - {axis})) for axis in sorted(axes))
    return tuple(int(np.flatnonzero(one).max(initial=0)) + 1 for one in used)

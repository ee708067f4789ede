"""Tensors as files between a build and its children: an .npz with members `<sample>/<name>`."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from edgepack.tasks.arrays import Tensor

Tensors = dict[str, Tensor]
"""Inputs or outputs of one inference by name."""


def write_tensors(path: Path, tensors: Sequence[Tensors]) -> None:
    """Write the tensors of several inferences, in order."""
    members = {f"{i}/{name}": value for i, one in enumerate(tensors) for name, value in one.items()}
    with path.open("wb") as file:
        np.savez(file, **members)  # type: ignore[arg-type]


def read_tensors(path: Path, count: int) -> tuple[Tensors, ...]:
    """Read the tensors of `count` inferences; an inference without tensors is empty."""
    samples: list[Tensors] = [{} for _ in range(count)]
    with np.load(path, allow_pickle=False) as archive:
        for member in archive.files:
            number, _, name = member.partition("/")
            samples[int(number)][name] = archive[member]
    return tuple(samples)

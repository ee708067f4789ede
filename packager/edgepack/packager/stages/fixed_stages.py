"""Stages for profiles that need fixed shapes: their graphs and what these are given.

Where host steps make a picture smaller than the graph's fixed size, the graph gets a mask of its
padding (`padding_mask`), and then reads the same as with free shapes: both are compared on what the
pipeline gives the graph. A graph for which this is not possible reads the padding as pixels; the
report names it.
"""

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

import msgspec
import numpy as np

from edgepack.agent.runtime.opening import open_model_file, without_spinning
from edgepack.agent.runtime.sessions import Session, SessionTensor
from edgepack.bundle.plain_arrays import read_arrays
from edgepack.packager.graph.model_files import load_model, save_model
from edgepack.packager.stages.padding_mask import Shape, UnmaskableError, add_padding_mask
from edgepack.packager.stages.pipeline_file import StageSource
from edgepack.stages.wiring import MASK_INPUT, Resize, Wiring
from edgepack.tasks.arrays import Tensor

_TOLERANCE = 1e-3
"""Share of an output's greatest value by which masked and free shapes may differ; PP-OCR's graphs
differ by 1e-6.
"""
_FLOAT_ERROR = 1e-5
"""Difference of 32-bit floats that counts as none: an output may be 0 everywhere."""
_PARTS = (1.0, 0.75, 0.5)
"""Parts of a sample's picture that are compared: a whole one may leave no padding."""
_STEP = 32
"""Sizes of parts are multiples of it, as detectors of text need."""
_MOST_COMPARED = 8
"""Samples that are compared."""


class FixedStage(msgspec.Struct, frozen=True, kw_only=True):
    """A stage with fixed shapes.

    Attributes:
        path: Its graph, with a mask where there is one.
        shapes: Shapes of the graph's inputs that the build has to fix.
        mask: Shape by input of the mask; empty without a mask.
        because: Reason for a graph without a mask that needs one; "" for any other.
    """

    path: Path
    shapes: dict[str, Shape]
    mask: dict[str, Shape] = {}
    because: str = ""


def fix_stage(stage: StageSource, wiring: Wiring, folder: Path) -> FixedStage:
    """Return a stage with fixed shapes, with a mask of its padding where that is possible.

    Args:
        stage: The stage, with shapes.
        wiring: The pipeline's wiring.
        folder: Folder for the graph.
    """
    axes = _padded_axes(stage, wiring)
    if len(axes) != 1:
        return FixedStage(path=stage.path, shapes=stage.shapes)
    ((name, open_axes),) = axes.items()
    path = folder / f"{stage.name}.onnx"
    try:
        model = add_padding_mask(load_model(stage.path), name, stage.shapes[name], open_axes)
    except UnmaskableError as error:
        return FixedStage(path=stage.path, shapes=stage.shapes, because=str(error))
    save_model(model, path)
    (mask,) = (one for one in model.graph.input if one.name == name + MASK_INPUT)
    sizes = tuple(dim.dim_value for dim in mask.type.tensor_type.shape.dim)
    others = {one: shape for one, shape in stage.shapes.items() if one != name}
    return FixedStage(path=path, shapes=others, mask={mask.name: sizes})


def _padded_axes(stage: StageSource, wiring: Wiring) -> dict[str, tuple[int, ...]]:
    """Return by input of a graph the axes at whose ends host steps leave padding."""
    steps = {one.output: one for one in wiring.steps if isinstance(one, Resize)}
    wired = next(one for one in wiring.stages if one.name == stage.name)
    found: dict[str, tuple[int, ...]] = {}
    for name, shape in stage.shapes.items():
        step = steps.get(wired.inputs.get(name, ""))
        if step is not None and step.fit == "page":
            found[name] = (2, 3)
        elif step is not None and step.width < shape[-1]:
            found[name] = (3,)
    return found


def find_difference(stage: StageSource, fixed: FixedStage, files: Sequence[Path]) -> str:
    """Return how a graph with a mask differs from the free graph; "" if both compute the same.

    Both run on parts of samples: what is left out is padding.

    Args:
        stage: The stage, with shapes.
        fixed: The same with a mask.
        files: Inputs of the graph with the mask, a `.npz` file each.
    """
    ((mask, _),) = fixed.mask.items()
    masked, graph = (open_model_file(it.path, without_spinning()) for it in (fixed, stage))
    free = CroppedSession(graph, stage.shapes, fixed.mask)
    places = np.unique(np.linspace(0, len(files) - 1, _MOST_COMPARED).astype(int))
    try:
        for place, part in product(places, _PARTS):
            given = read_arrays(files[place], files[place].stat().st_size)
            feeds = _take_part(given, mask, part)
            if because := _compare(free.run(feeds), masked.run(feeds)):
                return f"{because} with {int(feeds[mask].sum())} of {feeds[mask].size} places"
    finally:
        masked.close()
        graph.close()
    return ""


def _take_part(given: Mapping[str, Tensor], mask: str, part: float) -> dict[str, Tensor]:
    """Return inputs with a part of the picture, from its upper left corner."""
    if part == 1.0:
        return dict(given)
    kept = np.zeros(given[mask].shape, np.float32)
    sizes = [
        min(size, max(_STEP, int(size * part) // _STEP * _STEP))
        for size in (len(np.unique(axis)) for axis in np.nonzero(given[mask])[2:])
    ]
    kept[..., : sizes[0], : sizes[1]] = 1
    name = mask.removesuffix(MASK_INPUT)
    return {**given, mask: kept, name: np.multiply(given[name], kept)}


def _compare(expected: Mapping[str, Tensor], got: Mapping[str, Tensor]) -> str:
    """Return which output differs, or is not 0 in the padding; "" for none."""
    for output, values in expected.items():
        whole = np.zeros_like(got[output])
        inside = tuple(slice(0, size) for size in values.shape)
        if whole[inside].shape != values.shape:
            return f"output '{output}' has another shape"
        whole[inside] = values
        limit = _TOLERANCE * float(np.abs(values).max(initial=0)) + _FLOAT_ERROR
        if not np.abs(np.subtract(got[output], whole)).max(initial=0) <= limit:
            return f"output '{output}' differs"
    return ""


class CroppedSession(Session):
    """A graph of free size that takes what a graph of fixed size takes: pixels and their mask.

    Args:
        graph: The graph.
        shapes: Fixed shapes by input.
        masks: By input of a mask its shape.
    """

    def __init__(
        self, graph: Session, shapes: Mapping[str, Shape], masks: Mapping[str, Shape]
    ) -> None:
        self._graph = graph
        self._masks = tuple(masks)
        self.provider, self.placement = graph.provider, graph.placement
        self.left_nodes, self.outputs = graph.left_nodes, graph.outputs
        self.inputs = tuple(
            msgspec.structs.replace(one, shape=shapes.get(one.name, one.shape))
            for one in graph.inputs
        ) + tuple(
            SessionTensor(name=name, dtype="float32", shape=shape) for name, shape in masks.items()
        )

    def run(self, feeds: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Run an inference without the padding; see `Session.run`."""
        given = {name: value for name, value in feeds.items() if name not in self._masks}
        for mask in self._masks:
            name, places = mask.removesuffix(MASK_INPUT), feeds[mask]
            sizes = [
                int(places.max(axis=tuple({0, 1, 2, 3} - {axis})).sum())
                if places.shape[axis] > 1
                else None
                for axis in range(places.ndim)
            ]
            given[name] = given[name][tuple(slice(0, size) for size in sizes)]
        return self._graph.run(given)

    def close(self) -> None:
        """Leave the graph open: its pipeline closes it."""

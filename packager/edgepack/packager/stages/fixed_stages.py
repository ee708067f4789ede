"""Stages for profiles that need fixed shapes: their graphs and what these are given.

Where host steps make a picture smaller than the graph's fixed size, the graph gets a mask of its
padding (`padding_mask`), and then reads the same as with free shapes. A graph for which this is not
possible reads the padding as pixels; the report names it.
"""

from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np

from edgepack.agent.runtime.opening import open_model_file
from edgepack.agent.runtime.sessions import Session, SessionTensor
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
_BLOCK = 12
"""Pixels of a square of one value: graphs for text see little in finer noise."""


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
        save_model(model, path)
        _check_same(stage, name, path)
    except UnmaskableError as error:
        return FixedStage(path=stage.path, shapes=stage.shapes, because=str(error))
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


def _check_same(stage: StageSource, name: str, path: Path) -> None:
    """Compare a graph with a mask and the free graph on coarse noise of several sizes.

    Raises:
        UnmaskableError: They differ.
    """
    masked = open_model_file(path)
    shapes = {one.name: tuple(map(int, one.shape)) for one in masked.inputs}
    mask = shapes[name + MASK_INPUT]
    graph = open_model_file(stage.path)
    free = CroppedSession(graph, stage.shapes, {name + MASK_INPUT: mask})
    rng = np.random.default_rng(7)
    for part in (1.0, 0.75, 0.5):
        sizes = tuple(max(32, int(size * part) // 32 * 32) if size > 1 else 1 for size in mask[2:])
        feeds = {key: rng.normal(0, 1, shape).astype(np.float32) for key, shape in shapes.items()}
        kept = np.zeros(mask, np.float32)
        kept[:, :, : sizes[0], : sizes[1]] = 1
        blocks = feeds[name][..., ::_BLOCK, ::_BLOCK]
        coarse = blocks.repeat(_BLOCK, axis=2).repeat(_BLOCK, axis=3)
        pixels = coarse[..., : shapes[name][2], : shapes[name][3]]
        feeds |= {name + MASK_INPUT: kept, name: pixels * kept}
        expected, got = free.run(feeds), masked.run(feeds)
        for output, values in expected.items():
            same = got[output][tuple(slice(0, size) for size in values.shape)]
            limit = _TOLERANCE * float(np.abs(values).max()) + _FLOAT_ERROR
            if same.shape != values.shape or np.abs(np.subtract(same, values)).max() > limit:
                raise UnmaskableError(f"output '{output}' differs with a mask of {sizes}")
    masked.close()
    graph.close()


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

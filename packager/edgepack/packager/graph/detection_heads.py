"""Recognition of a detector's box outputs from the nodes before them.

Each row of `_ROWS` knows a layout (`tensors.detections.LAYOUTS`) by sizes and operators: as many
places as the grids of a pyramid have cells, four numbers per place next to scores, a map of
probabilities behind two transposed convolutions. For outputs that look like boxes and fit no row, a
person is asked.
"""

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping

import msgspec
import onnx
from msgspec.structs import replace

from edgepack.packager.graph.class_names import read_class_names
from edgepack.packager.graph.operators import facts
from edgepack.packager.graph.queries import GraphIndex, index_graph, reached
from edgepack.tasks.detections.decoding import LEVEL_STRIDES
from edgepack.tasks.detections.layouts import DetectionHead

_FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE)
_BYTE = onnx.TensorProto.UINT8
_COORDINATES = 4
_PYRAMIDS = ((8, 16, 32), (8, 16, 32, 64), (4, 8, 16, 32), (16, 32))
_MOST_ANCHORS = 3
_FEWEST_PLACES = 100
"""Of a detector: an output of fewer rows of four is as often something else."""

_FEWEST_BINS = 4
"""Of the distribution of a side's distance."""

_MOST_QUERIES = 1000
_SUPPRESSED_ROWS = (6, 7)
"""Corners, score and class; before them the picture's number in YOLOv7's exports."""

_ENDS = ("Conv", "Constant")
"""Where what merely moves an output ends, looked at from behind."""

Sizes = tuple[int | None, ...]


class FoundHead(msgspec.Struct, frozen=True, kw_only=True):
    """Boxes found in a graph.

    Attributes:
        head: The head; None where no row fits.
        unknown: Outputs that look like boxes and fit no row.
    """

    head: DetectionHead | None = None
    unknown: tuple[str, ...] = ()


class _View(msgspec.Struct, frozen=True, kw_only=True):
    """View of a graph for the rows.

    Attributes:
        index: The graph, with its shapes.
        outputs: Sizes of its float outputs.
        size: Height and width of the picture; None if open.
        metadata: Metadata of the exporter.
    """

    index: GraphIndex
    outputs: Mapping[str, Sizes]
    size: tuple[int, int] | None
    metadata: Mapping[str, str]

    @property
    def single(self) -> str:
        """The only output; "" where there are several."""
        return next(iter(self.outputs)) if len(self.outputs) == 1 else ""

    def behind(self, name: str) -> Iterator[onnx.NodeProto]:
        """Yield the nodes that a tensor comes from, the nearest first, along their first inputs."""
        while (node := self.index.maker(name)) is not None:
            yield node
            name = node.input[0] if node.input else ""

    def maker(self, name: str) -> str:
        """Return the operator that computes a tensor's values, before any moving operators."""
        return next((node.op_type for node in self.behind(name) if not _moves(node)), "")

    def pyramids(self) -> Iterator[int]:
        """Yield cells of the usual pyramids of grids over the picture."""
        if self.size is not None:
            height, width = self.size
            for strides in _PYRAMIDS:
                yield sum(math.ceil(height / s) * math.ceil(width / s) for s in strides)


def find_detection_head(
    graph: onnx.GraphProto, metadata: Mapping[str, str], ignored: Collection[str] = ()
) -> FoundHead:
    """Find the outputs that are a detector's boxes.

    Args:
        graph: The graph with its shapes.
        metadata: Metadata of the exporter.
        ignored: Outputs with a known meaning.
    """
    index = index_graph(graph)
    outputs = {
        name: index.shapes[name]
        for name in index.outputs
        if index.types.get(name) in _FLOATS and name in index.shapes and name not in ignored
    }
    view = _View(index=index, outputs=outputs, size=_picture(index), metadata=metadata)
    if not _takes_picture(index):
        return FoundHead()
    for find in _ROWS:
        head = find(view)
        if head is not None:
            return FoundHead(head=head)
    return FoundHead(unknown=tuple(name for name in outputs if _may_be_boxes(view, name)))


def picture_size(graph: onnx.GraphProto) -> tuple[int, int] | None:
    """Return height and width of a graph's input picture; None if open."""
    return _picture(index_graph(graph))


def _takes_picture(index: GraphIndex) -> bool:
    return any(
        len(index.shapes.get(name, ())) == _COORDINATES
        for name in index.inputs
        if name not in index.initializers and index.types.get(name) in (*_FLOATS, _BYTE)
    )


def _picture(index: GraphIndex) -> tuple[int, int] | None:
    for name in index.inputs:
        shape = index.shapes.get(name, ())
        if name in index.initializers or len(shape) != _COORDINATES:
            continue
        height, width = shape[1:3] if shape[3] in (1, 3, 4) else shape[2:]
        return None if height is None or width is None else (height, width)
    return None


def _moves(node: onnx.NodeProto) -> bool:
    return facts(node.op_type).one_scale or node.op_type == "Concat"


def _noted_by_ultralytics(view: _View) -> DetectionHead | None:
    """Return ultralytics' exporter notes task and classes; segmentation adds 32 terms a place."""
    if view.metadata.get("task") not in ("detect", "segment", "pose"):
        return None
    classes = len(read_class_names(view.metadata))
    for name, shape in view.outputs.items():
        if len(shape) != _COORDINATES - 1:
            continue
        known = [size for size in shape[1:] if size is not None]
        if shape[-1] in _SUPPRESSED_ROWS and (shape[1] or 0) <= _MOST_QUERIES:
            return DetectionHead(layout="suppressed", outputs=(name,), source="metadata")
        if classes and known and min(known) >= _COORDINATES + classes:
            return DetectionHead(layout="yolo", outputs=(name,), classes=classes, source="metadata")
    return None


def _text_map(view: _View) -> DetectionHead | None:
    """Recognize a map of probabilities that transposed convolutions upsample to picture size."""
    shape = view.outputs.get(name := view.single, ())
    if len(shape) != _COORDINATES or shape[1] not in (1, None):
        return None
    ops = [node.op_type for node in view.behind(name)]
    told = [op for op in ops if op not in ("Identity", "Add", "BatchNormalization", "Relu")]
    if told[:3] != ["Sigmoid", "ConvTranspose", "ConvTranspose"]:
        return None
    return DetectionHead(layout="text-map", outputs=(name,))


def _suppressed(view: _View) -> DetectionHead | None:
    for name, shape in view.outputs.items():
        is_rows = len(shape) in (2, 3) and shape[-1] in _SUPPRESSED_ROWS
        is_few = is_rows and shape[-2] != 1 and (shape[-2] or 0) <= _MOST_QUERIES
        if is_few and _is_joined(view, name) and _is_selected(view, name):
            return DetectionHead(layout="suppressed", outputs=(name,))
    return None


def _is_joined(view: _View, name: str) -> bool:
    """Return True if a tensor is concatenated from several: ranking scores are numbers of a single
    kind.
    """
    moves = itertools.takewhile(_moves, view.behind(name))
    return any(node.op_type == "Concat" for node in moves)


def _labelled(view: _View) -> DetectionHead | None:
    """Return boxes, scores and whole numbers of classes that a selection gives."""
    index = view.index
    chosen = [name for name in index.outputs if _is_selected(view, name)]
    boxes = [
        name
        for name in chosen
        if name in view.outputs and index.shapes[name][-1:] == (_COORDINATES,)
    ]
    if len(boxes) != 1:
        return None
    rank = len(index.shapes[boxes[0]]) - 1
    beside = [name for name in chosen if len(index.shapes.get(name, ())) == rank]
    scores = [name for name in beside if name in view.outputs]
    labels = [name for name in beside if name not in view.outputs]
    if len(scores) != 1 or len(labels) != 1:
        return None
    return DetectionHead(layout="labelled", outputs=(boxes[0], scores[0], labels[0]))


def _is_selected(view: _View, name: str) -> bool:
    def behind(tensor: str) -> list[str]:
        node = view.index.maker(tensor)
        if node is None or facts(node.op_type).weights == "product":
            return []
        return [entry for entry in node.input if entry]

    makers = map(view.index.maker, reached([name], behind))
    return any(node is not None and facts(node.op_type).selects for node in makers)


def _centernet(view: _View) -> DetectionHead | None:
    """Return a map of centres next to two maps of pairs, cell by cell."""
    maps = {name: shape for name, shape in view.outputs.items() if len(shape) == _COORDINATES}
    for name, shape in maps.items():
        pairs = [
            other
            for other, sizes in maps.items()
            if other != name and sizes[1] == 2 and sizes[2:] == shape[2:]
        ]
        is_alone = shape[1] is not None and (shape[1] != 2 or len(pairs) > 2)
        if is_alone and len(pairs) >= 2 and view.maker(name) == "Sigmoid":
            return DetectionHead(layout="centernet", outputs=(name, *pairs[:2]))
    return None


def _yolo(view: _View) -> DetectionHead | None:
    """Return a head with as many places as a pyramid of grids has cells, each with a box and
    scores.
    """
    for name, shape in view.outputs.items():
        if len(shape) != _COORDINATES - 1 or None in shape[1:]:
            continue
        channels, places = sorted(size for size in shape[1:] if size is not None)
        anchors = [places // cells for cells in view.pyramids() if places % cells == 0]
        if channels <= _COORDINATES or not any(1 <= n <= _MOST_ANCHORS for n in anchors):
            continue
        head = DetectionHead(layout="yolo", outputs=(name,), size=view.size)
        if shape[1] == channels:
            return head
        if channels == _COORDINATES + 1:
            continue
        if 1 in anchors and _is_raw(view, name):
            return replace(head, layout="yolox")
        return replace(head, layout="yolo-objectness")
    return None


def _is_raw(view: _View, name: str) -> bool:
    """Return True if nothing but moves and sigmoids lies between a tensor and its convolutions."""

    def behind(tensor: str) -> list[str]:
        node = view.index.maker(tensor)
        if node is None or node.op_type in _ENDS:
            return []
        return list(node.input if node.op_type == "Concat" else node.input[:1])

    makers = filter(None, map(view.index.maker, reached([name], behind)))
    return all(_moves(node) or node.op_type in ("Sigmoid", *_ENDS) for node in makers)


def _gfl(view: _View) -> DetectionHead | None:
    """Return class scores by sigmoids and distributions of four sides, a pair for each level."""
    levels: dict[int, dict[bool, tuple[str, int]]] = {}
    for name, shape in view.outputs.items():
        for stride, channels in _levels(view, shape[1:]):
            levels.setdefault(stride, {})[view.maker(name) == "Sigmoid"] = (name, channels)
            break
    pairs = [pair for _, pair in sorted(levels.items())]
    if len(pairs) < 2 or any(len(pair) < 2 for pair in pairs):
        return None
    scores, sides = ([pair[is_score] for pair in pairs] for is_score in (True, False))
    bins, odd = divmod(sides[0][1], _COORDINATES)
    has_one_kind = all(len({channels for _, channels in kind}) == 1 for kind in (scores, sides))
    if odd or bins < _FEWEST_BINS or not has_one_kind:
        return None
    names = tuple(name for name, _ in (*scores, *sides))
    return DetectionHead(layout="gfl", outputs=names, size=view.size, activation="none")


def _levels(view: _View, shape: Sizes) -> Iterator[tuple[int, int]]:
    """Yield strides of levels with the sizes of a single picture's output, and channels."""
    for stride in LEVEL_STRIDES if view.size is not None and None not in shape else ():
        high, wide = (math.ceil(size / stride) for size in view.size or ())
        for cells in ((high * wide,), (high, wide)):
            if len(shape) == len(cells) + 1 and cells in (shape[:-1], shape[1:]):
                yield stride, (shape[-1] if shape[:-1] == cells else shape[0]) or 0


def _boxes_beside_scores(view: _View) -> DetectionHead | None:
    """Recognize an output with four numbers per place, and another with scores of the same places.

    Boxes that a sigmoid gives are a transformer's, as shares of the picture.
    """
    boxes = [name for name in view.outputs if _looks_like_boxes(view, name)]
    if len(boxes) != 1:
        return None
    places = view.outputs[boxes[0]][1]
    scores = [
        name
        for name, shape in view.outputs.items()
        if name != boxes[0] and len(shape) == _COORDINATES - 1 and places in shape[1:]
    ]
    if len(scores) != 1 or places is None:
        return None
    is_query = places <= _MOST_QUERIES and view.maker(boxes[0]) == "Sigmoid"
    return DetectionHead(layout="detr" if is_query else "ssd", outputs=(boxes[0], scores[0]))


def _may_be_boxes(view: _View, name: str) -> bool:
    """Return True for four numbers per place, or for a level of a pyramid that is output level by
    level.

    Four maps are four numbers per place if a map of scores has the same places (FCOS).
    """
    shape = view.outputs[name]
    cells = {
        (math.ceil(height / stride), math.ceil(width / stride))
        for height, width in [view.size or (0, 0)]
        for stride in _PYRAMIDS[0]
    }
    levels = [other for other in view.outputs.values() if _is_level(other, cells)]
    return (
        _looks_like_boxes(view, name)
        or _are_sides(view, name)
        or (len(levels) >= len(_PYRAMIDS[0]) and _is_level(shape, cells))
    )


def _are_sides(view: _View, name: str) -> bool:
    """Return True for four maps on a grid coarser than the picture, next to maps of scores."""
    grid = _grid(view.outputs[name], _COORDINATES)
    if grid is None or view.size is None or grid[0] >= view.size[0] or grid[1] >= view.size[1]:
        return False
    return any(
        other != name and view.maker(other) == "Sigmoid" and grid in (shape[1:3], shape[2:])
        for other, shape in view.outputs.items()
        if len(shape) == _COORDINATES
    )


def _grid(shape: Sizes, channels: int) -> tuple[int, int] | None:
    """Return height and width of so many maps; None for another number or open sizes."""
    if len(shape) != _COORDINATES or channels not in (shape[1], shape[3]):
        return None
    high, wide = shape[2:] if shape[1] == channels else shape[1:3]
    return None if high is None or wide is None else (high, wide)


def _is_level(shape: Sizes, cells: Collection[tuple[int, int]]) -> bool:
    is_map = len(shape) >= _COORDINATES and (shape[-2:] in cells or shape[-3:-1] in cells)
    is_rows = len(shape) == _COORDINATES - 1 and any(
        math.prod(cell) in shape[1:] for cell in cells if math.prod(cell) > 1
    )
    return is_map or is_rows


def _looks_like_boxes(view: _View, name: str) -> bool:
    shape = view.outputs[name]
    is_rows = len(shape) == _COORDINATES - 1 and shape[-1] == _COORDINATES
    return is_rows and (shape[1] or 0) >= _FEWEST_PLACES


_ROWS: tuple[Callable[[_View], DetectionHead | None], ...] = (
    _noted_by_ultralytics,
    _suppressed,
    _labelled,
    _text_map,
    _centernet,
    _gfl,
    _boxes_beside_scores,
    _yolo,
)
"""The first that fits is taken."""

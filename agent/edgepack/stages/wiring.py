"""Wiring of a pipeline: graphs and host steps, joined by the names of tensors.

A value is a tensor, or a list of tensors: lines that were cut out of a page have different sizes. A
graph, or a step, that is given a list runs for each item, and gives a list.
"""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import msgspec

from edgepack.stages.loops import Cache, Loop, StageName, TensorName

MAX_STAGES = 16
MAX_STEPS = 64
MAX_ENDS = 16
MAX_CHARACTERS = 32_768
MAX_LINE = 4096
"""Width of a line in pixels at most, by default; a graph's work grows with the width."""

MASK_INPUT = "_mask"
"""Ends the name of a graph's input for the mask of another one's padding: float32, 1 for pixels and
0 for padding.
"""
MASK_TENSOR = "/padding-mask"
"""Ends the name of the tensor for it."""

Dtype = Literal["float32", "float64", "float16", "int8", "int16", "int32", "int64", "uint8", "bool"]
_Side = Annotated[int, msgspec.Meta(ge=1, le=2**14)]
_LeastSide = Annotated[int, msgspec.Meta(ge=0, le=2**14)]
_Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
_Number = Annotated[float, msgspec.Meta(ge=-1e6, le=1e6)]
_Channels = Annotated[tuple[_Number, ...], msgspec.Meta(min_length=1, max_length=3)]
_Divisor = Annotated[float, msgspec.Meta(ge=1e-6, le=1e6)]
_Divisors = Annotated[tuple[_Divisor, ...], msgspec.Meta(min_length=1, max_length=3)]


class _Strict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of everything that a wiring holds."""


class PipelineInput(_Strict, frozen=True, kw_only=True, omit_defaults=True):
    """Input of a pipeline.

    Attributes:
        name: Its tensor.
        kind: `picture` for uint8 pixels (1, height, width, 3) of any size, red first; `tensor` for
            an array of `dtype` and `shape`.
        dtype, shape: Of a `tensor`: a size, or the name of a free axis, per axis.
    """

    name: TensorName
    kind: Literal["picture", "tensor"] = "picture"
    dtype: Dtype = "uint8"
    shape: Annotated[tuple[int | str, ...], msgspec.Meta(max_length=8)] = (1, "height", "width", 3)


class StageWiring(_Strict, frozen=True, kw_only=True):
    """Graph of a pipeline.

    Attributes:
        name: Name of the stage; it names a component of the package.
        inputs: By input of the graph the tensor that it takes.
        outputs: By output of the graph the tensor that it gives; further outputs are not used.
            A graph that continues the loop of another stage has none.
        loop: Of a decoder that is run again and again: `inputs` are then all others, `outputs` has
            the logits (1, tokens, vocabulary) alone, and its tensor is the text, int64 (1, tokens).
    """

    name: StageName
    inputs: Annotated[dict[TensorName, TensorName], msgspec.Meta(max_length=256)]
    outputs: Annotated[dict[TensorName, TensorName], msgspec.Meta(max_length=256)]
    loop: Loop | None = None

    @property
    def reads(self) -> tuple[str, ...]:
        """Tensors that the stage takes."""
        return tuple(self.inputs.values())

    @property
    def writes(self) -> tuple[str, ...]:
        """Tensors that the stage gives."""
        return tuple(self.outputs.values())

    @property
    def words(self) -> str:
        """The stage, for messages."""
        return f"stage '{self.name}'"


class _Step(_Strict, frozen=True, kw_only=True, tag_field="kind", omit_defaults=True):
    """Work on the host between the graphs."""

    _takes: ClassVar[tuple[str, ...]] = ("input",)
    _gives: ClassVar[tuple[str, ...]] = ("output",)

    @property
    def words(self) -> str:
        """The step, for messages."""
        return f"step '{self.__struct_config__.tag}' of '{self.reads[0]}'"

    @property
    def reads(self) -> tuple[str, ...]:
        """Tensors that the step takes."""
        return self._named(self._takes)

    @property
    def writes(self) -> tuple[str, ...]:
        """Tensors that the step gives."""
        return self._named(self._gives)

    def _named(self, fields: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name for field in fields if (name := getattr(self, field)))


class Resize(_Step, frozen=True, kw_only=True, tag="resize"):
    """Bring pixels to the size of a graph, and their values to the range of the graph.

    A pixel p of channel c becomes `(p * scale - mean[c]) / std[c]`. Where the graph that takes
    `output` has a fixed height and width, the pixels are brought to this size; the rest is 0.

    Attributes:
        input, output: Pixels (1, height, width, 3), and the float32 (1, 3, height, width) of these.
        scaled: Tensor float32 (2,) with the pixels of `output` per pixel of `input`, across and
            down; "" for none.
        fit: `page` keeps the aspect, with sides that `multiple` divides; `line` brings the height
            to `height`, and squeezes only lines that are too long for the greatest width.
        least_side, most_side: Of a `page` of any size: the shorter side has this number of pixels
            at least, and the longer side at most.
        multiple: See `fit`.
        height, width, most_width: Of a `line`: the height, the least width, and the greatest one.
        together: Of a `line` of any width: lines of a list that are brought to the width of their
            longest, in the order of their aspects, as a recognizer that takes batches is used.
        color: Order of the channels.
        scale, mean, std: See above.
    """

    _gives = ("output", "scaled")
    input: TensorName
    output: TensorName
    scaled: str = ""
    fit: Literal["page", "line"] = "page"
    least_side: _LeastSide = 736
    most_side: _Side = 2000
    multiple: Annotated[int, msgspec.Meta(ge=1, le=256)] = 32
    height: _Side = 48
    width: _LeastSide = 320
    most_width: _Side = MAX_LINE
    together: Annotated[int, msgspec.Meta(ge=1, le=256)] = 1
    color: Literal["RGB", "BGR"] = "RGB"
    scale: _Number = 1 / 255
    mean: _Channels = (0.0,)
    std: _Divisors = (1.0,)


class Boxes(_Step, frozen=True, kw_only=True, tag="boxes"):
    """Find the boxes of text in a map of probabilities (differentiable binarization).

    Attributes:
        input: Map float32 (1, 1, height, width), 0 … 1.
        scaled: The tensor of the step `resize` that made the input of the graph.
        picture: The pixels, whose size bounds the boxes.
        output: Boxes float32 (boxes, 4, 2): corners in pixels of the picture, clockwise from the
            upper left one, in the order of reading.
        threshold: A pixel of the map above it is text.
        least: Least mean of the map in a box.
        grow: Distance by which boxes grow: this times area over perimeter.
        most: Boxes at most.
    """

    _takes = ("input", "scaled", "picture")
    input: TensorName
    scaled: TensorName
    picture: TensorName
    output: TensorName
    threshold: _Share = 0.3
    least: _Share = 0.5
    grow: Annotated[float, msgspec.Meta(ge=0, le=10)] = 1.6
    most: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 1000


class Crop(_Step, frozen=True, kw_only=True, tag="crop"):
    """Cut boxes out of a picture, upright; boxes that are higher than wide are turned by 90°.

    Attributes:
        input, boxes: Pixels (1, height, width, 3), and float32 (boxes, 4, 2).
        output: List of pixels, one a box.
    """

    _takes = ("input", "boxes")
    input: TensorName
    boxes: TensorName
    output: TensorName


class Turn(_Step, frozen=True, kw_only=True, tag="turn"):
    """Turn pixels by 180° where a classifier is sure that they are upside down.

    Attributes:
        input, by: Pixels, and the probabilities (1, classes) of the classifier.
        output: Pixels.
        number: Class of what is upside down.
        least: Least probability.
    """

    _takes = ("input", "by")
    input: TensorName
    by: TensorName
    output: TensorName
    number: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 1
    least: _Share = 0.9


class Ctc(_Step, frozen=True, kw_only=True, tag="ctc"):
    """Read text from the classes of steps: repetitions merged, blanks dropped.

    Attributes:
        input: Probabilities float32 (1, steps, classes).
        output: Texts int32 (texts, characters): Unicode's code points, 0 behind the end.
        scores: Tensor float32 (texts,) with the mean probability of the characters; "" for none.
        blank: Class of the blank.
        characters: Character of each class but the blank, in their order.
    """

    _gives = ("output", "scores")
    input: TensorName
    output: TensorName
    scores: str = ""
    blank: Annotated[int, msgspec.Meta(ge=0, le=MAX_CHARACTERS)] = 0
    characters: Annotated[
        tuple[Annotated[str, msgspec.Meta(min_length=1, max_length=8)], ...],
        msgspec.Meta(max_length=MAX_CHARACTERS),
    ] = ()


class Keep(_Step, frozen=True, kw_only=True, tag="keep"):
    """Keep the rows of tensors whose score is high enough.

    Attributes:
        inputs, outputs: Tensors with a row for each score, and their names without the other rows.
        by: Scores float32 (rows,).
        least: Least score.
    """

    inputs: Annotated[tuple[TensorName, ...], msgspec.Meta(min_length=1, max_length=16)]
    outputs: Annotated[tuple[TensorName, ...], msgspec.Meta(min_length=1, max_length=16)]
    by: TensorName
    least: _Share = 0.5

    @property
    def reads(self) -> tuple[str, ...]:
        return (*self.inputs, self.by)

    @property
    def writes(self) -> tuple[str, ...]:
        return self.outputs


class Argmax(_Step, frozen=True, kw_only=True, tag="argmax"):
    """Choose the class with the greatest value on the last axis.

    Attributes:
        input: Values (…, classes).
        output: Classes int64 (…).
    """

    input: TensorName
    output: TensorName


Step = Resize | Boxes | Crop | Turn | Ctc | Keep | Argmax
KINDS = ("resize", "boxes", "crop", "turn", "ctc", "keep", "argmax")
Node = StageWiring | Step


class Wiring(_Strict, frozen=True, kw_only=True):
    """Graphs and host steps of a pipeline.

    Attributes:
        inputs: Inputs of the pipeline.
        outputs: Tensors that the pipeline gives.
        stages: Its graphs.
        steps: Its host steps.
    """

    inputs: Annotated[tuple[PipelineInput, ...], msgspec.Meta(min_length=1, max_length=MAX_ENDS)]
    outputs: Annotated[tuple[TensorName, ...], msgspec.Meta(min_length=1, max_length=MAX_ENDS)]
    stages: Annotated[tuple[StageWiring, ...], msgspec.Meta(min_length=1, max_length=MAX_STAGES)]
    steps: Annotated[tuple[Step, ...], msgspec.Meta(max_length=MAX_STEPS)] = ()

    def continuing(self, stage: StageWiring) -> StageWiring | None:
        """Return the stage that continues the loop of a decoder; None without a cache."""
        if stage.loop is None or stage.loop.cache is None:
            return None
        name = stage.loop.cache.stage
        return next((one for one in self.stages if one.name == name), None)

    @property
    def picture(self) -> str:
        """Return the input that takes a picture; "" without such an input."""
        return next((one.name for one in self.inputs if one.kind == "picture"), "")


class WiringError(ValueError):
    """A wiring that cannot run.

    Attributes:
        remedy: Change that helps.
    """

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(problem)
        self.remedy = remedy


def order_nodes(wiring: Wiring) -> tuple[Node, ...]:
    """Return stages and steps in an order in which each finds its tensors.

    Raises:
        WiringError: Two stages have a name, two nodes give a tensor, a tensor comes from nowhere,
            or nodes wait for each other.
    """
    names = [stage.name for stage in wiring.stages]
    for name in names:
        if names.count(name) > 1:
            raise WiringError(
                f"{names.count(name)} stages have the name '{name}'", "give each stage its own name"
            )
    nodes: tuple[Node, ...] = (*_running_stages(wiring), *wiring.steps)
    made_by: dict[str, str] = {one.name: "the inputs" for one in wiring.inputs}
    for node in nodes:
        for tensor in node.writes:
            if tensor in made_by:
                raise WiringError(
                    f"the tensor '{tensor}' comes from {made_by[tensor]} and from {node.words}",
                    "give each tensor a name of its own",
                )
            made_by[tensor] = node.words
    wanted = [(node.words, tensor) for node in nodes for tensor in node.reads]
    wanted += [("the outputs of the pipeline", tensor) for tensor in wiring.outputs]
    for words, tensor in wanted:
        if tensor not in made_by:
            raise WiringError(
                f"no input, stage or step gives the tensor '{tensor}' that {words} "
                f"{'take' if words.startswith('the outputs') else 'takes'}",
                f"name one of the {len(made_by)} tensors: {', '.join(sorted(made_by))}",
            )
    return _sort(nodes, {one.name for one in wiring.inputs})


def _running_stages(wiring: Wiring) -> tuple[StageWiring, ...]:
    """Return the stages that run by themselves, without those that continue a loop.

    Raises:
        WiringError: A loop, or what continues it, does not fit.
    """
    continuing = set[str]()
    for stage in wiring.stages:
        loop = stage.loop
        if loop is None:
            continue
        if len(stage.outputs) != 1 or loop.tokens in stage.inputs:
            raise WiringError(
                f"{stage.words} is a loop with {len(stage.outputs)} outputs and the inputs "
                f"{', '.join(stage.inputs)}",
                "name the output with the logits alone, and no tensor for the input of the tokens",
            )
        if loop.written >= len(loop.start):
            raise WiringError(
                f"{stage.words} counts {loop.written} of {len(loop.start)} first tokens as added",
                "the first token of start is given: written is smaller",
            )
        if loop.cache is not None:
            continuing.add(loop.cache.stage)
            _check_cache(wiring, stage, loop, loop.cache)
    for stage in wiring.stages:
        if not stage.outputs and stage.name not in continuing:
            raise WiringError(
                f"{stage.words} has no outputs, and no loop has it as its cache",
                "name the outputs that other stages take",
            )
    return tuple(stage for stage in wiring.stages if stage.name not in continuing)


def _check_cache(wiring: Wiring, stage: StageWiring, loop: Loop, cache: Cache) -> None:
    found = wiring.continuing(stage)
    if found is None or found is stage or found.outputs or found.loop:
        raise WiringError(
            f"{stage.words} is continued by '{cache.stage}', which is "
            f"{'not a stage without outputs' if found else 'no stage'}",
            "name a stage without outputs",
        )
    known = {*found.inputs, *cache.first, loop.tokens}
    if len(known) != len(found.inputs) + len(cache.first) + 1 or set(cache.next) - set(cache.first):
        raise WiringError(
            f"{found.words} is given an input twice, or a value without a first one",
            "wire each input by inputs, or by first and next of the cache",
        )
    if odd := set(found.reads) - set(stage.reads):
        raise WiringError(
            f"{found.words} takes '{min(odd)}', which {stage.words} does not take",
            f"take tensors that {stage.words} takes: {', '.join(sorted(stage.reads))}",
        )


def _sort(nodes: tuple[Node, ...], known: set[str]) -> tuple[Node, ...]:
    ordered: list[Node] = []
    waiting = list(nodes)
    while waiting:
        ready = [node for node in waiting if known.issuperset(node.reads)]
        if not ready:
            circle = ", ".join(node.words for node in waiting)
            raise WiringError(
                f"{len(waiting)} nodes wait for each other's tensors: {circle}",
                "break the cycle: a stage cannot take what it gives itself",
            )
        ordered += ready
        waiting = [node for node in waiting if node not in ready]
        known = known | {tensor for node in ready for tensor in node.writes}
    return tuple(ordered)


def find_lists(wiring: Wiring) -> dict[str, str]:
    """Return the tensors that are lists, each with the tensor whose items it follows.

    Raises:
        WiringError: A step takes a list where it needs a tensor, or two lists of other items.
    """
    lists: dict[str, str] = {}
    for node in order_nodes(wiring):
        if isinstance(node, Keep) and len(node.inputs) != len(node.outputs):
            raise WiringError(
                f"{node.words} has {len(node.inputs)} inputs and {len(node.outputs)} outputs",
                "name an output for each input",
            )
        given = {lists[tensor] for tensor in node.reads if tensor in lists}
        if len(given) > 1:
            raise WiringError(
                f"{node.words} takes items of {len(given)} lists: {', '.join(sorted(given))}",
                "take tensors of the items of one list",
            )
        if isinstance(node, Crop):
            if given:
                raise WiringError(
                    f"{node.words} takes the list '{given.pop()}'", "cut boxes out of a picture"
                )
            lists[node.output] = node.output
        elif given and isinstance(node, Boxes | Keep):
            raise WiringError(
                f"{node.words} takes the list '{given.pop()}', and needs a tensor",
                "read texts from the items first: kind = 'ctc'",
            )
        elif given and not isinstance(node, Ctc):
            lists |= dict.fromkeys(node.writes, given.pop())
    for tensor in wiring.outputs:
        if tensor in lists:
            raise WiringError(
                f"the output '{tensor}' is a list of tensors of different sizes",
                "end with a step that gives a tensor: kind = 'ctc'",
            )
    return lists


def check_pictures(wiring: Wiring) -> None:
    """Check that steps for pixels take pixels, with values for each channel or for all, and that
    other steps take no pixels.

    Raises:
        WiringError: A step or a stage takes the wrong kind of tensor, or two numbers for three
            channels.
    """
    pixels = {one.name for one in wiring.inputs if one.kind == "picture"}
    for node in order_nodes(wiring):
        takes: Mapping[str, bool] = {}
        if isinstance(node, Resize) and (counts := {len(node.mean), len(node.std)} - {1, 3}):
            raise WiringError(
                f"{node.words} has {counts.pop()} numbers in mean or std", "give 1 number, or 3"
            )
        if isinstance(node, Resize | Crop | Turn):
            takes = {node.input: True}
            if isinstance(node, Crop | Turn):
                pixels.add(node.output)
        elif isinstance(node, Boxes):
            takes = {node.picture: True, node.input: False}
        for tensor, is_wanted in takes.items():
            if (tensor in pixels) != is_wanted:
                raise WiringError(
                    f"{node.words} takes '{tensor}', which is "
                    f"{'no picture' if is_wanted else 'a picture'}",
                    f"pictures are {', '.join(sorted(pixels)) or 'none'}",
                )

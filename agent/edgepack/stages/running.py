"""Runs a pipeline: graphs and host steps in their order."""

from collections.abc import Callable, Collection, Mapping

import numpy as np

from edgepack.stages.decoding import Decoder, RunGraph, write_text
from edgepack.stages.steps import Shapes, Value, run_step
from edgepack.stages.wiring import (
    MASK_INPUT,
    MASK_TENSOR,
    Argmax,
    Boxes,
    Ctc,
    Keep,
    Node,
    StageWiring,
    Wiring,
    order_nodes,
)
from edgepack.tasks.arrays import Tensor

Record = Callable[[str, Mapping[str, Tensor]], None]
"""Takes the name of a stage, and what the stage is given."""

Spec = tuple[str, tuple[int | str, ...]]
"""Dtype and shape of a tensor: a size, or the name of a free axis, per axis."""


def run_wiring(
    wiring: Wiring,
    graphs: Mapping[str, RunGraph],
    shapes: Shapes,
    feeds: Mapping[str, Tensor],
    record: Record | None = None,
) -> dict[str, Tensor]:
    """Run a pipeline.

    Args:
        wiring: Its wiring.
        graphs: By stage the inference of its graph.
        shapes: By tensor the shape of the graph's input that takes the tensor.
        feeds: Inputs by name.
        record: Called before each inference of a graph.

    Raises:
        ValueError: A tensor does not fit a step.
        DeviceError: A provider failed.
    """
    values: dict[str, Value] = dict(feeds)
    for node in order_nodes(wiring):
        if isinstance(node, StageWiring):
            values |= _run_stage(wiring, node, graphs, values, record)
        else:
            values |= run_step(node, values, shapes)
    return {name: np.ascontiguousarray(values[name]) for name in wiring.outputs}


def _run_stage(
    wiring: Wiring,
    stage: StageWiring,
    graphs: Mapping[str, RunGraph],
    values: Mapping[str, Value],
    record: Record | None,
) -> dict[str, Value]:
    masks = [name for tensor in stage.reads if (name := tensor + MASK_TENSOR) in values]
    given = {tensor: values[tensor] for tensor in (*stage.reads, *masks)}
    counts = [len(value) for value in given.values() if isinstance(value, list)]
    made: list[dict[str, Tensor]] = []
    for item in range(counts[0] if counts else 1):
        tensors = {
            name: value[item] if isinstance(value, list) else value for name, value in given.items()
        }
        made.append(_run_once(wiring, stage, graphs, tensors, record))
    named = stage.outputs.items()
    if counts:
        return {tensor: [one[name] for one in made] for name, tensor in named}
    return {tensor: made[0][name] for name, tensor in named}


def _run_once(
    wiring: Wiring,
    stage: StageWiring,
    graphs: Mapping[str, RunGraph],
    tensors: Mapping[str, Tensor],
    record: Record | None,
) -> dict[str, Tensor]:
    """Run a graph, or write the text of a decoder, which has the name of its logits."""

    def asker(name: str) -> RunGraph:
        def ask(feeds: Mapping[str, Tensor]) -> dict[str, Tensor]:
            if record is not None:  # Of several texts that are followed, one tells enough.
                record(name, {key: one[:1] for key, one in feeds.items()} if stage.loop else feeds)
            return graphs[name](feeds)

        return ask

    def feed(one: StageWiring) -> dict[str, Tensor]:
        masks = {key: key + MASK_TENSOR for key in one.inputs.values()}
        found = {
            name + MASK_INPUT: tensors[masks[tensor]]
            for name, tensor in one.inputs.items()
            if masks[tensor] in tensors
        }
        return found | {name: tensors[tensor] for name, tensor in one.inputs.items()}

    if stage.loop is None:
        return asker(stage.name)(feed(stage))
    (logits,) = stage.outputs
    then = wiring.continuing(stage)
    decoder = Decoder(
        *(stage.loop, logits, asker(stage.name), feed(stage)),
        proceed=None if then is None else asker(then.name),
        kept={} if then is None else feed(then),
    )
    return {logits: np.array([write_text(decoder)], np.int64)}


def shapes_of_inputs(
    wiring: Wiring, graphs: Mapping[str, Mapping[str, tuple[int | str, ...]]]
) -> dict[str, tuple[int | str, ...]]:
    """Return by tensor the shape of the graph's input that takes it, masks of padding included.

    Args:
        wiring: The wiring.
        graphs: By stage and input the shape.
    """
    return {
        tensor: graphs[stage.name][name]
        for stage in wiring.stages
        for name, tensor in wired_inputs(stage, graphs[stage.name]).items()
    }


def wired_inputs(stage: StageWiring, names: Collection[str]) -> dict[str, str]:
    """Return by input of a graph the tensor that the input takes, masks of padding included.

    Args:
        stage: The stage.
        names: Inputs of its graph.
    """
    masks = {name + MASK_INPUT: tensor + MASK_TENSOR for name, tensor in stage.inputs.items()}
    return {name: tensor for name, tensor in masks.items() if name in names} | stage.inputs


def specs_of(wiring: Wiring, graphs: Mapping[str, Mapping[str, Spec]]) -> dict[str, Spec]:
    """Return dtype and shape of each tensor, as far as the graphs and the steps tell.

    Args:
        wiring: The wiring.
        graphs: By stage and output of its graph the dtype and the shape.
    """
    specs: dict[str, Spec] = {one.name: (one.dtype, one.shape) for one in wiring.inputs}
    for node in order_nodes(wiring):
        if isinstance(node, StageWiring):
            own = graphs[node.name]
            text: Spec = ("int64", (1, "tokens"))
            specs |= {
                tensor: text if node.loop else own[name] for name, tensor in node.outputs.items()
            }
        else:
            specs |= _specs_of_step(node, specs)
    return specs


def _specs_of_step(step: Node, specs: Mapping[str, Spec]) -> dict[str, Spec]:
    if isinstance(step, Boxes):
        return {step.output: ("float32", ("lines", 4, 2))}
    if isinstance(step, Ctc):
        own: dict[str, Spec] = {step.output: ("int32", ("lines", "characters"))}
        return own | ({step.scores: ("float32", ("lines",))} if step.scores else {})
    if isinstance(step, Keep):
        return {
            name: (specs[source][0], ("lines", *specs[source][1][1:]))
            for name, source in zip(step.outputs, step.inputs, strict=True)
            if source in specs
        }
    if isinstance(step, Argmax) and step.input in specs:
        return {step.output: ("int64", specs[step.input][1][:-1])}
    return {}


def tensors_of_graph(wiring: Wiring, stage: StageWiring) -> tuple[set[str], set[str]]:
    """Return the inputs of a stage's graph that are given, and the outputs that are used."""
    fed, used = set(stage.inputs), set(stage.outputs)
    if stage.loop is not None:
        fed.add(stage.loop.tokens)
        if stage.loop.cache is not None:
            used |= set(stage.loop.cache.first.values())
    for other in wiring.stages:
        if other.loop is None or other.loop.cache is None or other.loop.cache.stage != stage.name:
            continue
        fed |= {other.loop.tokens, *other.loop.cache.first}
        used |= {*other.outputs, *other.loop.cache.next.values()}
    return fed, used

"""A decoder with fixed shapes, for providers that need them: built again from the same weights.

The variant has two graphs, which share a file of weights. The graph for many tokens goes through
the build like any other model; the graph for a single token is the same after the build, with other
sizes.
"""

from pathlib import Path

import onnx
from msgspec.structs import replace

from edgepack.agent.runtime.fixed_decoder import FixedSizes
from edgepack.bundle.generation import FixedNames as Names
from edgepack.errors import BuildError
from edgepack.packager.graph.model_files import WEIGHTS_SUFFIX
from edgepack.packager.progress import BuildStep, Progress
from edgepack.packager.source.decoders.exported import read_weights
from edgepack.packager.source.decoders.fixed_graph import FixedDecoderGraph
from edgepack.packager.source.decoders.shape import read_shape
from edgepack.packager.source.decoders.wiring import read_document
from edgepack.packager.source.model import SourceModel, load_source

MODEL = "model.onnx"
STEP = "step.onnx"
STEPS = 128
"""Tokens of a prompt that an inference takes. A device's other decoders take as many at once."""
MOST_CONTEXT = 8192
"""Each token costs the attention to the whole context, filled or not."""

_WEIGHTS = "give the folder of the weights (config.json, *.safetensors, tokenizer.json) of Llama, "
_WEIGHTS += (
    "Mistral, Qwen2, Qwen3, Phi-3 or Gemma: edgepack builds graphs with fixed shapes from it"
)


def check_fixed(source: SourceModel, profile: str) -> None:
    """Check that a decoder with fixed shapes can be built for a profile.

    Args:
        source: The decoder; its `texts` are known.
        profile: Name of the profile, for messages.

    Raises:
        BuildError: The decoder was exported by another tool, or its context is too long.
    """
    if source.texts is None or not source.texts.is_built:
        raise BuildError(
            f"profile {profile!r} needs every dimension fixed, and the cache of an exported "
            "decoder grows with each token",
            found_in=str(source.path),
            remedy=_WEIGHTS,
        )
    if source.texts.context > MOST_CONTEXT:
        raise BuildError(
            f"a context of {source.texts.context} tokens is too long for profile {profile!r}: its "
            f"graphs have a fixed context, of at most {MOST_CONTEXT} tokens",
            found_in=str(source.folder),
            remedy=f"--context {MOST_CONTEXT // 2}, or fewer",
        )


def open_fixed(
    source: SourceModel, work: Path, progress: Progress
) -> tuple[SourceModel, FixedSizes]:
    """Build the graph for many tokens.

    Args:
        source: The decoder; `check_fixed` passed.
        work: Folder for the graph; must not exist.
        progress: Called with the progress.

    Returns:
        The model, and its sizes.
    """
    if source.folder is None or source.texts is None:
        raise ValueError("the decoder was not built from a folder")
    config = source.folder / "config.json"
    shape = read_shape(read_document(config), config, source.texts.context)
    if shape.family.has_positions:
        raise BuildError(
            f"edgepack has no graph with fixed shapes for decoders of the kind {shape.family.kind}",
            found_in=str(config),
            remedy="build it for another profile, such as cpu-int4",
        )
    work.mkdir(parents=True)
    sizes = FixedSizes(steps=min(STEPS, shape.context), context=shape.context, window=shape.window)
    model = work / MODEL
    with model.with_suffix(WEIGHTS_SUFFIX).open("wb") as file:
        weights = read_weights(source.folder, shape)
        graph = FixedDecoderGraph(shape, weights, file, model.with_suffix(WEIGHTS_SUFFIX).name)
        for done in graph.write():
            progress(BuildStep(what="writing layers", done=done, total=shape.layers))
    content = graph.fixed_model(sizes.steps).SerializeToString(deterministic=True)
    model.write_bytes(content)
    fixed = load_source(model)
    return replace(fixed, folder=source.folder, description=source.description), sizes


def with_single_step(model: onnx.ModelProto, sizes: FixedSizes) -> None:
    """Change a graph for many tokens to a graph for one, in place."""
    graph = model.graph
    del graph.value_info[:]
    for value in (*graph.input, *graph.output):
        dims = value.type.tensor_type.shape.dim
        is_bias = value.name in (Names.bias, Names.local_bias)
        if value.name.startswith(Names.past):
            continue
        axis = 2 if is_bias or value.name.startswith(Names.present) else 1
        dims[axis].dim_value = 1
        if is_bias:
            dims[3].dim_value = sizes.context + 1

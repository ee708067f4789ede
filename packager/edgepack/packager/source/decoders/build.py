"""A decoder from a local folder: built from its weights, or taken as an exporter left it.

1. `genai_config.json`: an export of onnxruntime-genai's builder, taken unchanged.
2. `model.onnx` and `config.json` of a decoder: an export of Optimum. edgepack builds the graph
   again from its weights, with fused attention; if the logits differ, the export is taken as it is.
3. `config.json` with an architecture of `shape.ARCHITECTURES` and `*.safetensors`: edgepack builds
   the graph, without PyTorch.
4. Another decoder: onnxruntime-genai's builder exports the folder in a child process.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import onnx
from msgspec.structs import replace

from edgepack.bundle.adapters import AdapterPlaces
from edgepack.bundle.generation import GENAI_CONFIG
from edgepack.errors import BuildError
from edgepack.packager.graph.model_files import WEIGHTS_SUFFIX
from edgepack.packager.graph.queries import attribute
from edgepack.packager.progress import BuildStep, Progress
from edgepack.packager.source.decoders.checks import check_tokenizer, check_weights
from edgepack.packager.source.decoders.export import export_decoder
from edgepack.packager.source.decoders.exported import (
    MODEL,
    MOST_DIFFERENCE,
    compare_logits,
    read_weights,
)
from edgepack.packager.source.decoders.genai_config import (
    DecoderWiring,
    compose_genai_config,
    read_sampling,
)
from edgepack.packager.source.decoders.graph import OPSET, DecoderGraph
from edgepack.packager.source.decoders.shape import ARCHITECTURES, read_shape
from edgepack.packager.source.decoders.wiring import (
    describe_texts,
    model_file_of,
    read_document,
)
from edgepack.packager.source.fixed_inputs import Numbers
from edgepack.packager.source.model import SourceModel, load_source
from edgepack.text import counted

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"

_DECODERS = ("ForCausalLM", "GPT2LMHeadModel")
_SHARES = "past_present_share_buffer"
_INPUTS = {"input_ids": "input_ids", "attention_mask": "attention_mask"}
_POSITIONS = {"position_ids": "position_ids"}
_PAST = {"past_key_names": "past_key_values.%d.key", "past_value_names": "past_key_values.%d.value"}
_OUTPUTS = {
    "logits": "logits",
    "present_key_names": "present.%d.key",
    "present_value_names": "present.%d.value",
}


class OpenedDecoder(msgspec.Struct, frozen=True, kw_only=True):
    """A decoder's graph with its wiring.

    Attributes:
        model: The `.onnx` file.
        config: Content of `genai_config.json`.
        note: A sentence on the origin of the graph.
        places: Places for adapters in a graph of edgepack's own.
        is_built: Whether the graph was built from weights here.
    """

    model: Path
    config: Mapping[str, Any]
    note: str
    places: AdapterPlaces | None = None
    is_built: bool = False


def is_decoder_folder(folder: Path) -> bool:
    """Return True if a path is a folder with a decoder of texts; see above."""
    if not folder.is_dir():
        return False
    if (folder / GENAI_CONFIG).is_file():
        return True
    if not (folder / CONFIG).is_file():
        return False
    try:
        architecture = _architecture(read_document(folder / CONFIG))
    except BuildError:
        return False
    if not architecture.endswith(_DECODERS):
        return False
    return not any(folder.glob("*.onnx")) or (folder / MODEL).is_file()


def open_decoder(
    folder: Path,
    work: Path,
    progress: Progress,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    values: Mapping[str, Numbers] | None = None,
    *,
    context: int | None = None,
) -> SourceModel:
    """Load the decoder of a folder as a source model, with the facts for the generation of texts.

    Args:
        folder: The folder; `is_decoder_folder` accepts it.
        work: Folder for what is built or exported; must not exist, and must stay as long as the
            source is used.
        progress: Called with the progress.
        shapes, values: See `load_source`.
        context: Tokens of a text, fewer than the model takes; None for as many as the model takes.

    Raises:
        BuildError: A file is missing, malformed, or contradicts another; or the architecture cannot
            be built here.
    """
    opened = _open(folder, work, progress, context)
    source = load_source(opened.model, shapes, values)
    _check_cache(source)
    texts = describe_texts(opened.config, folder, source.inputs, source.outputs, context)
    texts = replace(texts, places=opened.places, is_built=opened.is_built)
    return replace(source, notes=(opened.note, *source.notes), texts=texts)


def _check_cache(source: SourceModel) -> None:
    """Reject a graph whose cache of layers with a window has the size of the window.

    ONNX Runtime computes such a graph only with a cache of that size, and not with the empty cache
    that texts begin with.
    """
    windowed = [
        node.name for node in source.model.graph.node if attribute(node, "sliding_window_cache", 0)
    ]
    if windowed:
        raise BuildError(
            f"{counted(len(windowed), 'layer')} of the decoder keep a cache of the size of their "
            "window, and edgepack's devices keep the whole text",
            found_in=f"node {windowed[0]!a:.200}, sliding_window_cache",
            remedy="give the folder of the weights, or export again with --extra_options "
            "windowed_kv_cache=false",
        )


def _open(folder: Path, work: Path, progress: Progress, context: int | None) -> OpenedDecoder:
    if (folder / GENAI_CONFIG).is_file():
        return OpenedDecoder(
            model=model_file_of(folder),
            config=read_document(folder / GENAI_CONFIG),
            note=f"The graph of the folder {folder.name} is taken as onnxruntime-genai's "
            "builder wrote it.",
        )
    document = read_document(folder / CONFIG)
    architecture = _architecture(document)
    if (folder / MODEL).is_file():
        return _fuse_export(folder, document, work, progress, context)
    if architecture not in ARCHITECTURES:
        return _take_genai(folder, work, architecture, progress)
    return _build(folder, document, work, progress, context)


def _build(
    folder: Path,
    document: Mapping[str, Any],
    work: Path,
    progress: Progress,
    context: int | None,
) -> OpenedDecoder:
    shape = read_shape(document, folder / CONFIG, context)
    check_tokenizer(folder, shape.vocabulary)
    weights = read_weights(folder, shape)
    check_weights(shape, weights)
    sampling = read_sampling(_settings(folder, document), shape.vocabulary)
    work.mkdir(parents=True)
    model = work / MODEL
    data = model.with_suffix(WEIGHTS_SUFFIX)
    with data.open("wb") as file:
        graph = DecoderGraph(shape, weights, file, data.name)
        for done in graph.write():
            progress(BuildStep(what="writing layers", done=done, total=shape.layers))
    model.write_bytes(graph.model().SerializeToString(deterministic=True))
    wiring = DecoderWiring(
        kind=shape.family.kind,
        layers=shape.layers,
        hidden=shape.hidden,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_size=shape.head_size,
        vocabulary=shape.vocabulary,
        context=shape.context,
        inputs=_INPUTS | (_POSITIONS if shape.family.has_positions else {}) | _PAST,
        outputs=_OUTPUTS,
        shares_cache=True,
    )
    return OpenedDecoder(
        model=model,
        config=compose_genai_config(wiring, sampling),
        note=f"Built from the weights of the folder {folder.absolute().name}: "
        f"{document['architectures'][0]}, "
        f"{shape.layers} layers, context {shape.context} tokens, opset {OPSET}"
        f"{', tied embeddings' if shape.is_tied else ''}.",
        places=graph.places,
        is_built=True,
    )


def _fuse_export(
    folder: Path,
    document: Mapping[str, Any],
    work: Path,
    progress: Progress,
    context: int | None,
) -> OpenedDecoder:
    """Build an export of Optimum again with fused attention; on any doubt take it as exported."""
    taken = _take_export(folder, document)
    if _architecture(document) not in ARCHITECTURES or taken.config["search"][_SHARES]:
        return taken
    try:
        built = _build(folder, document, work, progress, context)
        shape = read_shape(document, folder / CONFIG, context)
        difference = compare_logits(folder / MODEL, built.model, shape)
    except BuildError as error:
        return replace(taken, note=f"{taken.note} It was not fused: {error.problem}.")
    if not difference <= MOST_DIFFERENCE:
        because = f"the fused graph's logits differ by {difference:.2g} of their standard deviation"
        return replace(taken, note=f"{taken.note} It was not fused: {because}.")
    note = f"{built.note} The weights are those of its exported graph, whose logits differ by "
    return replace(built, note=f"{note}{difference:.1g} of their standard deviation.")


def _take_export(folder: Path, document: Mapping[str, Any]) -> OpenedDecoder:
    """Return an export of Optimum with a wiring that follows from its inputs."""
    try:
        graph = onnx.load(folder / MODEL, load_external_data=False).graph
    except Exception as error:  # protobuf's classes have no common base
        raise BuildError(f"{MODEL} is not an ONNX model", found_in=str(folder / MODEL)) from error
    shapes = {
        value.name: [
            size.dim_value if size.HasField("dim_value") else 0
            for size in value.type.tensor_type.shape.dim
        ]
        for value in graph.input
    }
    pasts = [name for name in shapes if name.startswith("past_key_values.")]
    if not pasts:
        raise BuildError(
            f"the decoder has no cache: its inputs are {', '.join(shapes) or 'none'}",
            found_in=str(folder / MODEL),
            remedy=f"optimum-cli export onnx --task text-generation-with-past --model MODEL "
            f"{folder}, or give the folder of the weights",
        )
    layers = len(pasts) // 2
    past, sizes = shapes[pasts[0]], _Sizes(document, folder / CONFIG)
    wiring = DecoderWiring(
        kind="decoder",
        layers=layers,
        hidden=sizes.get("hidden_size", "n_embd"),
        heads=sizes.get("num_attention_heads", "n_head"),
        kv_heads=past[1] if len(past) == 4 else 0,
        head_size=past[3] if len(past) == 4 else 0,
        vocabulary=sizes.get("vocab_size"),
        context=sizes.get("max_position_embeddings", "n_positions"),
        inputs={name: name for name in (*_INPUTS, *_POSITIONS) if name in shapes} | _PAST,
        outputs=_OUTPUTS,
        shares_cache=any(node.op_type == "GroupQueryAttention" for node in graph.node),
    )
    sampling = read_sampling(_settings(folder, document), wiring.vocabulary)
    return OpenedDecoder(
        model=folder / MODEL,
        config=compose_genai_config(wiring, sampling),
        note=f"The graph of the folder {folder.name} is taken as exported: {layers} layers with a "
        f"cache{', without GroupQueryAttention' if not wiring.shares_cache else ''}.",
    )


def _take_genai(folder: Path, work: Path, architecture: str, progress: Progress) -> OpenedDecoder:
    note = export_decoder(folder, work, architecture, progress)
    return OpenedDecoder(
        model=model_file_of(work), config=read_document(work / GENAI_CONFIG), note=note
    )


class _Sizes:
    """Sizes in a `config.json`, by the names of several architectures."""

    def __init__(self, document: Mapping[str, Any], file: Path) -> None:
        self._document, self._file = document, file

    def get(self, *keys: str) -> int:
        """Return the first stated size.

        Raises:
            BuildError: No key has a whole number above 0.
        """
        found = [self._document[key] for key in keys if self._document.get(key) is not None]
        if found and isinstance(found[0], int) and found[0] > 0:
            return found[0]
        raise BuildError(
            f"the configuration has {found[0]!a:.40} as {keys[0]}"
            if found
            else f"the configuration has no {keys[0]}",
            found_in=str(self._file),
            remedy="give the configuration that belongs to the model",
        )


def _settings(folder: Path, document: Mapping[str, Any]) -> dict[Path, Mapping[str, Any]]:
    files: dict[Path, Mapping[str, Any]] = {folder / CONFIG: document}
    if (folder / GENERATION_CONFIG).is_file():
        files[folder / GENERATION_CONFIG] = read_document(folder / GENERATION_CONFIG)
    return files


def _architecture(document: Mapping[str, Any]) -> str:
    named = document.get("architectures")
    return str(named[0]) if isinstance(named, list) and len(named) == 1 else ""

"""Facts and files of a source model that generates texts, checked against its graph.

`genai_config.json` describes the wiring. edgepack composes the file for a graph of its own and for
an export of Optimum, and takes the file of onnxruntime-genai's builder unchanged.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from edgepack.bundle.generation import ASSETS, GENAI_CONFIG, MAX_CONTEXT, MAX_VOCABULARY
from edgepack.decoding import convert_value, decode_json
from edgepack.errors import BuildError
from edgepack.packager.source.decoders.checks import check_tokenizer
from edgepack.packager.source.texts import TextSource
from edgepack.packager.tensors.spec import TensorSpec

_MOST_BYTES = 1 << 20

_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
_Few = Annotated[int, msgspec.Meta(ge=1, le=4096)]


class _Inputs(msgspec.Struct, frozen=True):
    input_ids: _Name = "input_ids"
    past_key_names: _Name = "past_key_values.%d.key"
    past_value_names: _Name = "past_key_values.%d.value"


class _Outputs(msgspec.Struct, frozen=True):
    logits: _Name = "logits"
    present_key_names: _Name = "present.%d.key"
    present_value_names: _Name = "present.%d.value"


class _Decoder(msgspec.Struct, frozen=True):
    filename: _Name
    head_size: _Few
    num_hidden_layers: _Few
    num_key_value_heads: _Few
    inputs: _Inputs = _Inputs()
    outputs: _Outputs = _Outputs()


class _Model(msgspec.Struct, frozen=True):
    context_length: Annotated[int, msgspec.Meta(ge=1, le=MAX_CONTEXT)]
    vocab_size: Annotated[int, msgspec.Meta(ge=1, le=MAX_VOCABULARY)]
    decoder: _Decoder


class _GenaiConfig(msgspec.Struct, frozen=True):
    """Used keys of `genai_config.json`."""

    model: _Model


def read_document(file: Path) -> dict[str, Any]:
    """Return the object in a JSON file of a folder.

    Raises:
        BuildError: The file is missing, too large, or not a JSON object.
    """
    try:
        with file.open("rb") as opened:
            content = opened.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise BuildError(f"{file.name} has more than {_MOST_BYTES:,} bytes", found_in=str(file))
        return decode_json(content, dict[str, Any])
    except FileNotFoundError as error:
        raise BuildError(f"the folder has no {file.name}", found_in=str(file.parent)) from error
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BuildError(
            f"{file.name} cannot be read: {error}",
            found_in=str(file),
            remedy="download the folder again",
        ) from error


def model_file_of(folder: Path) -> Path:
    """Return the decoder's file that `genai_config.json` of a folder names.

    Raises:
        BuildError: The file is malformed, or names a file outside the folder.
    """
    file = folder / GENAI_CONFIG
    name = _convert(read_document(file), file).model.decoder.filename
    if Path(name).name != name or not (folder / name).is_file():
        raise BuildError(
            f"the decoder's file {name!a:.200} is not in the folder",
            found_in=f"{file}, model.decoder.filename",
            remedy="copy all files of the export",
        )
    return folder / name


def describe_texts(
    document: Mapping[str, Any],
    folder: Path,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    context: int | None = None,
) -> TextSource:
    """Check the wiring of a decoder against its graph, and its tokenizer against its vocabulary.

    Args:
        document: Content of `genai_config.json`.
        folder: Folder of the tokenizer and the other files.
        inputs, outputs: The graph's.
        context: Tokens of a text, fewer than the model takes; None for as many as the model takes.

    Raises:
        BuildError: A number is out of range, the graph lacks a tensor or has another size, or the
            tokenizer does not fit.
    """
    found_in = folder / GENAI_CONFIG
    model = _convert(document, found_in).model
    if context is not None and not 0 < context <= model.context_length:
        raise BuildError(
            f"a context of {context} tokens is not possible: the model takes 1 to "
            f"{model.context_length}",
            found_in=str(folder),
            remedy=f"--context {model.context_length}, or fewer",
        )
    decoder = model.decoder
    specs = {spec.name: spec for spec in (*inputs, *outputs)}
    pasts = _names(decoder, decoder.inputs.past_key_names, decoder.inputs.past_value_names)
    presents = _names(
        decoder, decoder.outputs.present_key_names, decoder.outputs.present_value_names
    )
    needed = [decoder.inputs.input_ids, *pasts, decoder.outputs.logits, *presents]
    missing = [name for name in needed if name not in specs]
    if missing:
        raise BuildError(
            f"the graph has {len(inputs)} inputs and {len(outputs)} outputs, and lacks "
            f"{len(missing)} of the {len(needed)} tensors that its {decoder.num_hidden_layers} "
            f"layers need, such as {missing[0]!a:.200}",
            found_in=str(found_in),
            remedy="export the decoder with its cache (task text-generation-with-past)",
        )
    logits = specs[decoder.outputs.logits].shape
    if logits and isinstance(logits[-1], int) and logits[-1] != model.vocab_size:
        raise BuildError(
            f"the graph gives logits of {logits[-1]} tokens, and the vocabulary has "
            f"{model.vocab_size}",
            found_in=f"{found_in}, model.vocab_size",
            remedy="give the files that belong to the model",
        )
    wanted = (decoder.num_key_value_heads, decoder.head_size)
    for name in pasts:
        shape = specs[name].shape
        own = (shape[1], shape[3]) if len(shape) == 4 else ()
        if not own or any(
            isinstance(size, int) and size != other for size, other in zip(own, wanted, strict=True)
        ):
            raise BuildError(
                f"the cache {name!a:.200} has the shape {list(shape)}, and the configuration "
                f"means {wanted[0]} heads of {wanted[1]} values",
                found_in=str(found_in),
                remedy="give the files that belong to the model",
            )
    check_tokenizer(folder, model.vocab_size)
    itemsize = np.dtype(specs[pasts[0]].dtype).itemsize
    length = context or model.context_length
    search = {**document.get("search", {}), "max_length": length}
    return TextSource(
        context=length,
        vocabulary=model.vocab_size,
        cache_bytes_per_token=len(pasts) * wanted[0] * wanted[1] * itemsize,
        tokens=decoder.inputs.input_ids,
        logits=decoder.outputs.logits,
        config={
            **document,
            "model": {**document["model"], "context_length": length},
            "search": search,
        },
        files=tuple(
            folder / name for name in ASSETS if name != GENAI_CONFIG and (folder / name).is_file()
        ),
    )


def _convert(document: Mapping[str, Any], file: Path) -> _GenaiConfig:
    try:
        return convert_value(dict(document), _GenaiConfig)
    except msgspec.ValidationError as error:
        problem, _, place = str(error).partition(" - at ")
        raise BuildError(
            f"{GENAI_CONFIG} does not describe a decoder: {problem}",
            found_in=f"{file}, {place.strip('`$.')}",
            remedy="export the model again",
        ) from error


def _names(decoder: _Decoder, *patterns: str) -> list[str]:
    return [
        pattern.replace("%d", str(layer))
        for layer in range(decoder.num_hidden_layers)
        for pattern in patterns
    ]

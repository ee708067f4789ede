"""Folders of Optimum with an encoder and a decoder (T5, BART, Whisper), as pipelines.

A decoder with a cache, `decoder_with_past_model.onnx`, continues the text where the folder has it.
Without it, the decoder is run with all tokens so far for each new token. A folder may have both
decoders merged.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import onnx

from edgepack.decoding import decode_json
from edgepack.errors import BuildError
from edgepack.packager.source.model import read_graph
from edgepack.packager.stages import speech
from edgepack.packager.stages.generation_settings import read_rules
from edgepack.packager.stages.merged_decoder import MERGED, split_merged
from edgepack.tasks.transcript.measure import NAME as TRANSCRIPT

CONFIG = "config.json"
_ENCODER, _DECODER = "encoder_model.onnx", "decoder_model.onnx"
_WITH_CACHE = "decoder_with_past_model.onnx"
_DECODERS = "decoder*_model*.onnx"
"""Also decoders with a cache."""
_GENERATION = "generation_config.json"
_MOST_BYTES = 4 * 1024 * 1024
_PAST, _PRESENT = "past_key_values.", "present."
_FROM_CONFIG = ("decoder_start_token_id", "eos_token_id")
"""Settings that are in `config.json` where `generation_config.json` lacks them."""

_DTYPES: dict[int, str] = {
    onnx.TensorProto.FLOAT: "float32",
    onnx.TensorProto.FLOAT16: "float16",
    onnx.TensorProto.INT64: "int64",
    onnx.TensorProto.INT32: "int32",
}
_FROM_ENCODER = {
    "encoder_hidden_states": "last_hidden_state",
    "encoder_attention_mask": "attention_mask",
}
_TOKENS, _LOGITS, _TEXT = "input_ids", "logits", "tokens"


def is_encoder_decoder(folder: Path) -> bool:
    """Return True if a folder has graphs of Optimum with an encoder and a decoder, or one of both
    and a configuration that states both.
    """
    has_encoder = (folder / _ENCODER).is_file()
    has_decoder = any(folder.glob(_DECODERS))
    if has_encoder and has_decoder:
        return True
    if not (has_encoder or has_decoder) or not (folder / CONFIG).is_file():
        return False
    return read_settings(folder / CONFIG).get("is_encoder_decoder") is True


def check_complete(folder: Path) -> None:
    """Check that a folder of Optimum has both graphs, their weights and the configuration.

    Raises:
        BuildError: A file is missing.
    """
    decoder = MERGED if _is_merged(folder) else _DECODER
    needed = [_ENCODER, decoder, CONFIG]
    for name in (_ENCODER, decoder):
        if (folder / name).is_file():
            stored = read_graph(folder / name).graph.initializer
            outside = {
                entry.value
                for one in stored
                for entry in one.external_data
                if entry.key == "location"
            }
            needed += sorted(outside)
    missing = [name for name in needed if not (folder / name).is_file()]
    if missing:
        present = ", ".join(sorted(path.name for path in folder.glob("*.onnx*")))
        raise BuildError(
            f"the folder lacks {', '.join(missing)}; it has {present}",
            found_in=str(folder),
            remedy=f"copy {missing[0]} there, or export all files again: optimum-cli export onnx "
            "--model MODEL FOLDER, with a task without '-with-past'",
        )


def _is_merged(folder: Path) -> bool:
    return (folder / MERGED).is_file() and not (folder / _DECODER).is_file()


def describe_folder(folder: Path, work: Path) -> dict[str, Any]:
    """Return the content of the pipeline's file that a folder stands for.

    Args:
        folder: A folder of Optimum, exported for generation.
        work: Receives the two decoders of a merged one; must stay as long as they are used.

    Raises:
        BuildError: A file is malformed, or the decoder is another than Optimum's.
    """
    config, settings = (read_settings(folder / name) for name in (CONFIG, _GENERATION))
    whole = config | settings
    settings = {name: config.get(name) for name in _FROM_CONFIG} | (settings or config)
    loop = {"tokens": _TOKENS, **read_rules(settings, folder / _GENERATION)}
    if config.get("model_type") == speech.KIND:
        loop |= speech.describe_loop(whole, loop["start"][0], str(folder / _GENERATION))
    first, with_past = (folder.absolute() / name for name in (_DECODER, _WITH_CACHE))
    if _is_merged(folder):
        first, with_past = split_merged(folder / MERGED, work.absolute())
    encoder, decoder = read_graph(folder / _ENCODER), read_graph(first)
    taken = [one.name for one in decoder.graph.input]
    known = {_TOKENS: "", **_FROM_ENCODER}
    if _TOKENS not in taken or (odd := sorted(set(taken) - set(known))):
        raise BuildError(
            f"the decoder takes {', '.join(taken)}: a decoder without a cache takes {_TOKENS}, "
            f"{', '.join(_FROM_ENCODER)}",
            found_in=str(first),
            remedy="export with optimum-cli and its task without '-with-past', or write a "
            f"pipeline.toml{'' if _TOKENS not in taken else f' that wires {odd[0]}'}",
        )
    _check_vocabulary(decoder, config, folder)
    fed = {name: tensor for name, tensor in _FROM_ENCODER.items() if name in taken}
    if with_cache := _find_cache(with_past, decoder):
        loop["cache"] = with_cache.pop("cache")
    return {
        "pipeline": {"task": TRANSCRIPT, "outputs": [_TEXT]},
        "inputs": {one.name: _input(one) for one in encoder.graph.input},
        "stage": [
            {
                "name": "encoder",
                "model": _ENCODER,
                "outputs": {"last_hidden_state": "last_hidden_state"},
            },
            {
                "name": "decoder",
                "model": str(first),
                "inputs": fed,
                "outputs": {_LOGITS: _TEXT},
                "loop": loop,
            },
            *([with_cache] if with_cache else []),
        ],
    }


def _check_vocabulary(decoder: onnx.ModelProto, config: Mapping[str, Any], folder: Path) -> None:
    """Check that a decoder has the tokens of its configuration.

    Raises:
        BuildError: It scores another number of tokens.
    """
    stated = config.get("decoder_vocab_size", config.get("vocab_size"))
    for one in decoder.graph.output:
        sizes = one.type.tensor_type.shape.dim
        scored = sizes[-1].dim_value if one.name == _LOGITS and sizes else 0
        if scored and isinstance(stated, int) and scored != stated:
            raise BuildError(
                f"the decoder scores {scored} tokens, and the vocabulary has {stated}",
                found_in=str(folder / CONFIG),
                remedy="take decoder and configuration of the same export",
            )


def _find_cache(path: Path, decoder: onnx.ModelProto) -> dict[str, Any] | None:
    """Return the stage that continues a text, with the loop's key `cache`; None without one.

    Raises:
        BuildError: The two decoders do not fit each other.
    """
    if not path.is_file():
        return None
    graph = read_graph(path).graph
    taken = {one.name for one in graph.input} - {_TOKENS}
    first = {one: one.replace(_PAST, _PRESENT, 1) for one in taken if one.startswith(_PAST)}
    made = {one.name for one in graph.output}
    odd = set(first.values()) - {one.name for one in decoder.graph.output}
    odd |= taken - set(first) - set(_FROM_ENCODER)
    if odd or not first:
        raise BuildError(
            f"{path.name} and {_DECODER} do not fit each other: {min(odd, default=_PAST)} is in "
            "one of them only",
            found_in=str(path),
            remedy=f"export both at once with optimum-cli, or remove {path.name}",
        )
    return {
        "name": "decoder-with-cache",
        "model": str(path),
        "inputs": {name: tensor for name, tensor in _FROM_ENCODER.items() if name in taken},
        "outputs": {},
        "cache": {
            "stage": "decoder-with-cache",
            "first": dict(sorted(first.items())),
            "next": {one: own for one, own in sorted(first.items()) if own in made},
        },
    }


def read_settings(path: Path) -> dict[str, Any]:
    try:
        if not path.exists():
            return {}
        if path.stat().st_size > _MOST_BYTES:
            raise BuildError(f"the file has more than {_MOST_BYTES} bytes", found_in=str(path))
        found = decode_json(path.read_bytes(), dict[str, Any])
    except (OSError, msgspec.DecodeError) as error:
        raise BuildError(f"cannot read {path.name}: {error}", found_in=str(path)) from error
    return {name: value for name, value in found.items() if value is not None}


def _input(tensor: onnx.ValueInfoProto) -> dict[str, Any]:
    kind = tensor.type.tensor_type
    sizes = [one.dim_value or one.dim_param or "" for one in kind.shape.dim]
    return {
        "kind": "tensor",
        "dtype": _DTYPES.get(kind.elem_type, str(kind.elem_type)),
        "shape": [1, *sizes[1:]],
    }

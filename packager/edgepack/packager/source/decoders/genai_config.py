"""`genai_config.json` of a decoder, in the form of onnxruntime-genai.

The file describes the wiring of the graph for onnxruntime-genai and for edgepack's own device. End
tokens and sampling come from `generation_config.json`, else from `config.json`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec

from edgepack.decoding import convert_value
from edgepack.errors import BuildError

_Token = Annotated[int, msgspec.Meta(ge=0, le=2**31)]
_Tokens = Annotated[tuple[_Token, ...], msgspec.Meta(min_length=1, max_length=100)]


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """Special tokens and sampling that a folder states.

    Attributes:
        bos_token_id, eos_token_id, pad_token_id: Special tokens; None where there are none.
        do_sample, temperature, top_k, top_p, repetition_penalty: Defaults of sampling.
    """

    bos_token_id: _Token | _Tokens | None = None
    eos_token_id: _Token | _Tokens | None = None
    pad_token_id: _Token | None = None
    do_sample: bool = False
    temperature: Annotated[float, msgspec.Meta(ge=0, le=100)] | None = None
    top_k: Annotated[int, msgspec.Meta(ge=0, le=2**24)] | None = None
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    repetition_penalty: Annotated[float, msgspec.Meta(gt=0, le=100)] | None = None


class DecoderWiring(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of a decoder and names of its tensors.

    Attributes:
        kind: Architecture, as onnxruntime-genai names it.
        layers, hidden, heads, kv_heads, head_size, vocabulary, context: Sizes.
        inputs: Names of inputs by their meaning; `%d` stands for the layer in names of the cache.
        outputs: The same of outputs.
        shares_cache: Whether past and present may be the same memory.
    """

    kind: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    context: int
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    shares_cache: bool


def read_sampling(documents: Mapping[Path, Mapping[str, Any]], vocabulary: int) -> Sampling:
    """Return special tokens and sampling.

    Args:
        documents: Parsed files of the folder, the most important last.
        vocabulary: Tokens of the model.

    Raises:
        BuildError: A value is out of range, or a special token is not in the vocabulary.
    """
    found = Sampling()
    for file, document in documents.items():
        stated = {key: value for key, value in document.items() if value is not None}
        try:
            own = convert_value(stated, Sampling)
        except msgspec.ValidationError as error:
            problem, _, place = str(error).partition(" - at ")
            raise BuildError(
                f"a setting of generation does not fit: {problem}",
                found_in=f"{file}, {place.strip('`$.')}",
                remedy="correct the number, or remove the key",
            ) from error
        named = {key: getattr(own, key) for key in Sampling.__struct_fields__ if key in stated}
        found = msgspec.structs.replace(found, **named)
        for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
            value = getattr(found, key)
            tokens = () if value is None else (value,) if isinstance(value, int) else value
            for token in tokens:
                if token >= vocabulary:
                    raise BuildError(
                        f"the special token {token} is not in the vocabulary of {vocabulary} "
                        "tokens",
                        found_in=f"{file}, {key}",
                        remedy="give the files that belong to the model",
                    )
    return found


def compose_genai_config(wiring: DecoderWiring, sampling: Sampling) -> dict[str, Any]:
    """Return the content of `genai_config.json`; the bundle's assembly names the model's file."""
    end = sampling.eos_token_id
    first = sampling.bos_token_id
    if isinstance(first, tuple):
        first = first[0]
    pad = sampling.pad_token_id
    if pad is None:
        pad = end[0] if isinstance(end, tuple) else end
    return {
        "model": {
            "type": wiring.kind,
            "bos_token_id": 0 if first is None else first,
            "eos_token_id": 0 if end is None else end,
            "pad_token_id": 0 if pad is None else pad,
            "context_length": wiring.context,
            "vocab_size": wiring.vocabulary,
            "decoder": {
                "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
                "filename": "model.onnx",
                "head_size": wiring.head_size,
                "hidden_size": wiring.hidden,
                "num_attention_heads": wiring.heads,
                "num_hidden_layers": wiring.layers,
                "num_key_value_heads": wiring.kv_heads,
                "inputs": dict(wiring.inputs),
                "outputs": dict(wiring.outputs),
            },
        },
        "search": {
            "do_sample": sampling.do_sample,
            "early_stopping": True,
            "max_length": wiring.context,
            "min_length": 0,
            "num_beams": 1,
            "num_return_sequences": 1,
            "past_present_share_buffer": wiring.shares_cache,
            "repetition_penalty": sampling.repetition_penalty or 1.0,
            "temperature": 1.0 if sampling.temperature is None else sampling.temperature,
            "top_k": 50 if sampling.top_k is None else sampling.top_k,
            "top_p": sampling.top_p or 1.0,
        },
    }

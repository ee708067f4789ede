"""Wiring of a decoder: names of its tensors, sizes of its cache, end tokens, defaults of sampling.

A bundle has these facts in `genai_config.json`, in the form of onnxruntime-genai. Keys that have no
use here are ignored.
"""

from typing import Annotated, Any

import msgspec

from edgepack.bundle.generation import GENAI_CONFIG, MAX_CONTEXT, MAX_VOCABULARY
from edgepack.bundle.strict_json import convert_json, parse_json
from edgepack.errors import BundleError

MAX_CONFIG_BYTES = 1024 * 1024

_Few = Annotated[int, msgspec.Meta(ge=1, le=4096)]
_Token = Annotated[int, msgspec.Meta(ge=0, le=2**31)]
_Tensor = Annotated[str, msgspec.Meta(max_length=200)]


class DecoderInputs(msgspec.Struct, frozen=True, kw_only=True):
    """Names of inputs; `%d` stands for the layer, and "" for an input that the graph lacks."""

    input_ids: _Tensor = "input_ids"
    attention_mask: _Tensor = ""
    position_ids: _Tensor = ""
    past_key_names: _Tensor = "past_key_values.%d.key"
    past_value_names: _Tensor = "past_key_values.%d.value"


class DecoderOutputs(msgspec.Struct, frozen=True, kw_only=True):
    """Names of outputs; `%d` stands for the layer."""

    logits: _Tensor = "logits"
    present_key_names: _Tensor = "present.%d.key"
    present_value_names: _Tensor = "present.%d.value"


class DecoderGraph(msgspec.Struct, frozen=True, kw_only=True):
    """Graph of a decoder.

    Attributes:
        inputs, outputs: Names of its tensors.
        num_hidden_layers: Layers, each with a key and a value in the cache.
        num_key_value_heads, head_size: Sizes of the cache.
    """

    inputs: DecoderInputs = DecoderInputs()
    outputs: DecoderOutputs = DecoderOutputs()
    num_hidden_layers: _Few
    num_key_value_heads: _Few
    head_size: _Few


class _Model(msgspec.Struct, frozen=True, kw_only=True):
    decoder: DecoderGraph
    context_length: Annotated[int, msgspec.Meta(ge=1, le=MAX_CONTEXT)]
    vocab_size: Annotated[int, msgspec.Meta(ge=1, le=MAX_VOCABULARY)]
    eos_token_id: _Token | Annotated[tuple[_Token, ...], msgspec.Meta(max_length=100)] = ()


class SamplingDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """Sampling that a model asks for.

    Attributes:
        do_sample: Whether tokens are drawn; else the likeliest token is taken.
        temperature: Divisor of the logits.
        top_k: Likeliest tokens that are drawn from; 0 for all.
        top_p: Least sum of the probabilities of the likeliest tokens that are drawn from.
        repetition_penalty: Divisor of the logits of tokens that the text has; 1 for none.
        past_present_share_buffer: Whether the graph writes to the memory of its past.
    """

    do_sample: bool = False
    temperature: Annotated[float, msgspec.Meta(ge=0, le=100)] = 1.0
    top_k: Annotated[int, msgspec.Meta(ge=0, le=2**24)] = 0
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    repetition_penalty: Annotated[float, msgspec.Meta(gt=0, le=100)] = 1.0
    past_present_share_buffer: bool = False


class _Config(msgspec.Struct, frozen=True, kw_only=True):
    model: _Model
    search: SamplingDefaults = SamplingDefaults()


class Wiring(msgspec.Struct, frozen=True, kw_only=True):
    """Wiring of a decoder.

    Attributes:
        graph: Its tensors.
        context: Tokens of a text, the prompt included, at most.
        vocabulary: Tokens that the logits tell apart.
        end_tokens: Tokens that end a text.
        sampling: Defaults of sampling.
    """

    graph: DecoderGraph
    context: int
    vocabulary: int
    end_tokens: tuple[int, ...]
    sampling: SamplingDefaults

    @property
    def cache_names(self) -> list[tuple[str, str]]:
        """Names of each tensor of the cache: as an input, and as an output."""
        inputs, outputs = self.graph.inputs, self.graph.outputs
        pairs = (
            (inputs.past_key_names, outputs.present_key_names),
            (inputs.past_value_names, outputs.present_value_names),
        )
        return [
            (past.replace("%d", str(layer)), present.replace("%d", str(layer)))
            for layer in range(self.graph.num_hidden_layers)
            for past, present in pairs
        ]


def read_wiring(content: bytes) -> Wiring:
    """Return the wiring in a `genai_config.json`.

    Raises:
        BundleError: The file is malformed, or a value is out of range.
    """
    document: Any = parse_json(content, limit_bytes=MAX_CONFIG_BYTES, found_in=GENAI_CONFIG)
    config = convert_json(document, _Config, found_in=GENAI_CONFIG)
    model = config.model
    ends = model.eos_token_id
    ends = (ends,) if isinstance(ends, int) else ends
    beyond = [end for end in ends if end >= model.vocab_size]
    if beyond:
        raise BundleError(
            f"the end token {beyond[0]} is not in the vocabulary of {model.vocab_size} tokens",
            found_in=f"{GENAI_CONFIG}, model.eos_token_id",
        )
    return Wiring(
        graph=model.decoder,
        context=model.context_length,
        vocabulary=model.vocab_size,
        end_tokens=ends,
        sampling=config.search,
    )

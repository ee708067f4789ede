"""Shape of a decoder: sizes, norms, rotary embedding and switches, from `config.json`.

Each architecture is a row of `_FAMILIES`: what its layers do beyond Llama's. Strangers wrote the
file: its numbers are bounded, and compared with the shapes of the weights.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from edgepack.decoding import convert_value
from edgepack.errors import BuildError
from edgepack.packager.source.decoders.rotary import Rotary, read_rotary

_Size = Annotated[int, msgspec.Meta(ge=1, le=2**24)]
_Few = Annotated[int, msgspec.Meta(ge=1, le=4096)]
_Positive = Annotated[float, msgspec.Meta(gt=0, le=1e9)]

_SILU = ("silu", "swish")
_TANH_GELU = ("gelu_pytorch_tanh", "gelu_new", "gelu_fast")

Activation = Literal["silu", "gelu", "gelu_tanh"]


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """An architecture.

    Attributes:
        kind: Its name in onnxruntime-genai.
        scales_embedding: Whether embeddings are multiplied by the root of their size.
        norm_offset: Added to the weights of norms.
        has_outer_norms: Whether the outputs of attention and of products are normalized too.
        is_fused: Whether queries, keys and values, and gate and up, are stored as one matrix each.
        has_positions: Whether positions are learned, norms have means and biases, and products
            behind attention no gate, as in GPT-2.
        slides: Layers with a sliding window where the configuration does not list them: all, none,
            or all but every so-many-th.
    """

    kind: str
    scales_embedding: bool = False
    norm_offset: float = 0.0
    has_outer_norms: bool = False
    is_fused: bool = False
    has_positions: bool = False
    slides: Literal["all", "none"] | int = "none"


_FAMILIES: Mapping[str, Family] = {
    "LlamaForCausalLM": Family(kind="llama"),
    "MistralForCausalLM": Family(kind="mistral", slides="all"),
    "Qwen2ForCausalLM": Family(kind="qwen2"),
    "Qwen3ForCausalLM": Family(kind="qwen3"),
    "Phi3ForCausalLM": Family(kind="phi3", is_fused=True, slides="all"),
    "GemmaForCausalLM": Family(kind="gemma", scales_embedding=True, norm_offset=1.0),
    "Gemma2ForCausalLM": Family(
        kind="gemma2", scales_embedding=True, norm_offset=1.0, has_outer_norms=True, slides=2
    ),
    "Gemma3ForCausalLM": Family(
        kind="gemma3_text", scales_embedding=True, norm_offset=1.0, has_outer_norms=True, slides=6
    ),
    "GPT2LMHeadModel": Family(kind="gpt2", is_fused=True, has_positions=True),
}
ARCHITECTURES = tuple(_FAMILIES)


class _Config(msgspec.Struct, frozen=True, kw_only=True):
    """Used keys of `config.json`; the file has many more."""

    hidden_size: _Size
    intermediate_size: _Size
    num_hidden_layers: _Few
    num_attention_heads: _Few
    num_key_value_heads: _Few | None = None
    head_dim: _Few | None = None
    vocab_size: _Size
    max_position_embeddings: _Size
    rms_norm_eps: _Positive = 1e-6
    hidden_act: str | None = None
    hidden_activation: str | None = None
    tie_word_embeddings: bool | None = None
    query_pre_attn_scalar: _Positive | None = None
    attn_logit_softcapping: _Positive | None = None
    final_logit_softcapping: _Positive | None = None
    sliding_window: _Size | None = None
    use_sliding_window: bool | None = None
    max_window_layers: Annotated[int, msgspec.Meta(ge=0)] = 0
    layer_types: Annotated[tuple[str, ...], msgspec.Meta(max_length=4096)] | None = None


class DecoderShape(msgspec.Struct, frozen=True, kw_only=True):
    """Shape of a decoder.

    Attributes:
        family: Its architecture.
        layers, hidden, heads, kv_heads, head_size, intermediate, vocabulary: Sizes.
        context: Tokens that it takes.
        epsilon: Of its norms.
        activation: Of the gate.
        is_tied: Whether embeddings and head are one matrix.
        rotary: Rotary embedding of layers that see all tokens.
        local_rotary: The same of layers with a window.
        windows: By layer, tokens that a token sees, itself included; None for all before it.
        attention_scale: Factor of the scores; None for the usual one.
        attention_cap, logits_cap: Bounds by tanh; 0 for none.
    """

    family: Family
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    intermediate: int
    vocabulary: int
    context: int
    epsilon: float
    activation: Activation
    is_tied: bool
    rotary: Rotary
    local_rotary: Rotary
    windows: tuple[int | None, ...]
    attention_scale: float | None = None
    attention_cap: float = 0.0
    logits_cap: float = 0.0

    @property
    def window(self) -> int:
        """Tokens that layers with a window see; 0 if no layer sees less than the context."""
        return min({one for one in self.windows if one and one < self.context}, default=0)

    @property
    def cache_bytes_per_token(self) -> int:
        """Bytes of float32 keys and values per token."""
        return 2 * 4 * self.layers * self.kv_heads * self.head_size


def read_shape(document: Mapping[str, Any], file: Path, context: int | None) -> DecoderShape:
    """Return the shape that a configuration describes.

    Args:
        document: The content of `config.json`, with a known architecture.
        file: The file, for messages.
        context: Tokens of a text, fewer than the model takes; None for as many as the model takes.

    Raises:
        BuildError: A number is missing, out of range, or contradicts another number.
    """
    family = _FAMILIES[document["architectures"][0]]
    _check_float(document, file)
    if family.has_positions:
        document = _rename_gpt2(document, file)
    try:
        config = convert_value(dict(document), _Config)
    except msgspec.ValidationError as error:
        problem, _, place = str(error).partition(" - at ")
        raise BuildError(
            f"the configuration of the decoder does not fit: {problem}",
            found_in=f"{file}, {place.strip('`$.') or 'top level'}",
            remedy="download the folder again, or correct the number",
        ) from error
    heads = config.num_attention_heads
    kv_heads = config.num_key_value_heads or heads
    if heads % kv_heads:
        raise _contradiction(file, "num_key_value_heads", f"{heads} heads share {kv_heads} keys")
    if config.head_dim is None and config.hidden_size % heads:
        raise _contradiction(
            file, "hidden_size", f"{config.hidden_size} values are divided by {heads} heads"
        )
    head_size = config.head_dim or config.hidden_size // heads
    if head_size % 16 and not family.has_positions:
        raise BuildError(
            f"a head has {head_size} values, and ONNX Runtime's GroupQueryAttention rotates "
            "multiples of 16",
            found_in=f"{file}, head_dim",
            remedy="optimum-cli export onnx, and build its folder: that graph is taken unchanged",
        )
    rotary, local, longest = read_rotary(document, file, head_size)
    longest = min(longest, config.max_position_embeddings)
    if context is not None and not 0 < context <= longest:
        raise BuildError(
            f"a context of {context} tokens is not possible: the model takes 1 to {longest}",
            found_in=str(file),
            remedy=f"--context {longest}, or fewer",
        )
    return DecoderShape(
        family=family,
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        intermediate=config.intermediate_size,
        vocabulary=config.vocab_size,
        context=context or longest,
        epsilon=config.rms_norm_eps,
        activation=_activation(config, family, file),
        is_tied=_is_tied(config, family),
        rotary=rotary,
        local_rotary=local,
        windows=_windows(config, family, file),
        attention_scale=_attention_scale(config, family),
        attention_cap=config.attn_logit_softcapping or 0.0,
        logits_cap=config.final_logit_softcapping or 0.0,
    )


_GPT2 = {
    "n_embd": "hidden_size",
    "n_inner": "intermediate_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_positions": "max_position_embeddings",
    "layer_norm_epsilon": "rms_norm_eps",
    "activation_function": "hidden_act",
}
"""Keys of GPT-2's configuration, by Llama's names."""

_ODD_GPT2 = {
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
}
"""Settings of GPT-2 that few models change."""


def _rename_gpt2(document: Mapping[str, Any], file: Path) -> dict[str, Any]:
    for key, usual in _ODD_GPT2.items():
        if document.get(key, usual) != usual:
            raise BuildError(
                f"a decoder with {key} = {document[key]!a:.40} is not known",
                found_in=f"{file}, {key}",
                remedy="export it by Optimum, and give the folder of the export",
            )
    found = {_GPT2.get(key, key): value for key, value in document.items() if value is not None}
    hidden = found.get("hidden_size")
    if isinstance(hidden, int):
        found.setdefault("intermediate_size", 4 * hidden)
    return {"rms_norm_eps": 1e-5, "hidden_act": "gelu_new", "tie_word_embeddings": True, **found}


def _check_float(document: Mapping[str, Any], file: Path) -> None:
    quantized = document.get("quantization_config")
    if quantized:
        method = quantized.get("quant_method") if isinstance(quantized, dict) else quantized
        raise BuildError(
            f"the folder's weights are quantized ({method!a:.60})",
            found_in=f"{file}, quantization_config",
            remedy="give the folder of the float model: edgepack quantizes it",
        )


def _activation(config: _Config, family: Family, file: Path) -> Activation:
    named = config.hidden_act or "silu"
    if family.has_outer_norms:
        named = config.hidden_activation or _TANH_GELU[0]
    elif family.scales_embedding and config.hidden_act in (None, "gelu"):
        named = _TANH_GELU[0]  # Gemma's first files say "gelu" and mean this
    if named in _SILU:
        return "silu"
    if named in _TANH_GELU:
        return "gelu_tanh"
    if named == "gelu":
        return "gelu"
    raise BuildError(
        f"the activation {named!a:.60} is not known",
        found_in=f"{file}, {'hidden_activation' if family.has_outer_norms else 'hidden_act'}",
        remedy=f"known are {', '.join((*_SILU, 'gelu', *_TANH_GELU))}",
    )


def _is_tied(config: _Config, family: Family) -> bool:
    """Return whether weights are tied; Gemma's configurations leave out their default, true."""
    if config.tie_word_embeddings is None:
        return family.scales_embedding
    return config.tie_word_embeddings


def _attention_scale(config: _Config, family: Family) -> float | None:
    """Return the factor of the scores; Gemma's first version states one that it does not use."""
    stated = config.query_pre_attn_scalar
    return stated**-0.5 if stated and family.has_outer_norms else None


def _windows(config: _Config, family: Family, file: Path) -> tuple[int | None, ...]:
    layers, window = range(config.num_hidden_layers), config.sliding_window
    is_optional = family.kind in ("qwen2", "qwen3")
    is_used = not is_optional if config.use_sliding_window is None else config.use_sliding_window
    if window is None or not is_used:
        return (None,) * len(layers)
    if (types := config.layer_types) is not None:
        if len(types) != len(layers):
            raise _contradiction(
                file, "layer_types", f"{len(types)} types are listed for {len(layers)} layers"
            )
        return tuple(window if kind == "sliding_attention" else None for kind in types)
    if is_optional:
        return tuple(window if layer >= config.max_window_layers else None for layer in layers)
    if isinstance(family.slides, int):
        return tuple(window if (layer + 1) % family.slides else None for layer in layers)
    return tuple(window if family.slides == "all" else None for _ in layers)


def _contradiction(file: Path, key: str, problem: str) -> BuildError:
    return BuildError(
        f"the configuration contradicts itself: {problem}",
        found_in=f"{file}, {key}",
        remedy="download the folder again, or correct the number",
    )

"""Checks of a decoder's weights against its configuration, and of its tokenizer's size."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np

from edgepack.bundle.generation import MAX_ASSET_BYTES, TOKENIZER
from edgepack.decoding import decode_json
from edgepack.errors import BuildError
from edgepack.packager.source.decoders.graph import EMBEDDING, HEAD, POSITIONS
from edgepack.packager.source.decoders.shape import DecoderShape
from edgepack.packager.source.decoders.weights import Rows, Weights
from edgepack.text import counted

_UNUSED = (".rotary_emb.inv_freq", ".self_attn.masked_bias", ".self_attn.bias")
"""Ends of names of tensors that old files hold, and that follow from the configuration."""

_Token = Annotated[int, msgspec.Meta(ge=0, le=2**31)]


def check_weights(shape: DecoderShape, weights: Weights) -> None:
    """Check that the weights are those of the configuration: all, no others, and of its sizes.

    Raises:
        BuildError: A tensor is missing, unknown, or of another shape; or embeddings and head are
            tied by the configuration and differ, or the reverse.
    """
    needed = dict(_needed(shape, weights))
    config = f"{weights.folder / 'config.json'}"
    if HEAD not in weights and not shape.is_tied:
        raise BuildError(
            f"the configuration says that embeddings and head are not tied, and the weights have "
            f"no {HEAD}: {len(list(weights))} tensors are there",
            found_in=f"{config}, tie_word_embeddings",
            remedy='"tie_word_embeddings": true if the head is the embedding; else save the model '
            "again",
        )
    for name, sizes in needed.items():
        found = weights.shape(name)
        if found != sizes:
            raise BuildError(
                f"tensor {name!a:.200} has the shape {list(found)}, and the configuration means "
                f"{list(sizes)}",
                found_in=str(weights.folder),
                remedy="download config.json and weights again, from one place",
            )
    others = sorted(name for name in weights if name not in needed and not name.endswith(_UNUSED))
    if others:
        raise BuildError(
            f"the weights have {counted(len(others), 'tensor')} that a decoder of the kind "
            f"{shape.family.kind} has not: {others[0]!a:.200}",
            found_in=str(weights.folder),
            remedy="check that config.json names the architecture of the weights",
        )
    if HEAD in weights and shape.is_tied:
        _check_tie(weights, config)


def _needed(shape: DecoderShape, weights: Weights) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, size = shape.hidden, shape.intermediate
    queries, keys = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    yield EMBEDDING, (shape.vocabulary, hidden)
    yield "model.norm.weight", (hidden,)
    if HEAD in weights:
        yield HEAD, (shape.vocabulary, hidden)
    if shape.family.has_positions:
        yield POSITIONS, (max(weights.shape(POSITIONS)[0], shape.context), hidden)
    norms = ["input_layernorm", "post_attention_layernorm"]
    if shape.family.has_outer_norms:
        norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    products = {"self_attn.o_proj": (hidden, queries), "mlp.down_proj": (hidden, size)}
    if shape.family.is_fused:
        products["self_attn.qkv_proj"] = (queries + 2 * keys, hidden)
        gates = {"mlp.up_proj": (size, hidden)}
        if not shape.family.has_positions:
            gates = {"mlp.gate_up_proj": (2 * size, hidden)}
        products |= gates
    else:
        products["self_attn.q_proj"] = (queries, hidden)
        products |= dict.fromkeys(("self_attn.k_proj", "self_attn.v_proj"), (keys, hidden))
        products |= dict.fromkeys(("mlp.gate_proj", "mlp.up_proj"), (size, hidden))
    has_biases = shape.family.has_positions or not shape.family.is_fused
    if shape.family.has_positions:
        yield "model.norm.bias", (hidden,)
    for layer in range(shape.layers):
        path = f"model.layers.{layer}"
        yield from ((f"{path}.{norm}.weight", (hidden,)) for norm in norms)
        if shape.family.has_positions:
            yield from ((f"{path}.{norm}.bias", (hidden,)) for norm in norms)
        for name, sizes in products.items():
            yield f"{path}.{name}.weight", sizes
            if f"{path}.{name}.bias" in weights and has_biases:
                yield f"{path}.{name}.bias", sizes[:1]
        for name in ("q_norm", "k_norm"):
            if f"{path}.self_attn.q_norm.weight" in weights:
                yield f"{path}.self_attn.{name}.weight", (shape.head_size,)


def _check_tie(weights: Weights, config: str) -> None:
    pairs = zip(
        weights.pieces((Rows(name=EMBEDDING),), is_transposed=False),
        weights.pieces((Rows(name=HEAD),), is_transposed=False),
        strict=True,
    )
    different = sum(int(np.count_nonzero(one != other)) for one, other in pairs)
    if different:
        raise BuildError(
            f"the configuration says that embeddings and head are tied, and {different:,} values "
            f"of {HEAD} differ from the embeddings",
            found_in=f"{config}, tie_word_embeddings",
            remedy='"tie_word_embeddings": false if the head is a matrix of its own; else leave '
            f"{HEAD} out",
        )


class _Added(msgspec.Struct, frozen=True):
    id: _Token


class _Model(msgspec.Struct, frozen=True):
    vocab: dict[str, _Token] | list[msgspec.Raw]


class _Tokenizer(msgspec.Struct, frozen=True):
    model: _Model
    added_tokens: list[_Added] = []


def check_tokenizer(folder: Path, vocabulary: int) -> None:
    """Check that every token of a folder's tokenizer is in the vocabulary of the model.

    Args:
        folder: The folder; the tokenizer is `tokenizer.json`.
        vocabulary: Tokens that the logits are of.

    Raises:
        BuildError: There is no such file, the file is malformed or too large, or has a token that
            the model does not have.
    """
    file = folder / TOKENIZER
    if not file.is_file():
        raise BuildError(
            f"the folder has no {TOKENIZER}, and a device needs the tokenizer of its model",
            found_in=str(folder),
            remedy="AutoTokenizer.from_pretrained(folder).save_pretrained(folder) writes it",
        )
    if file.stat().st_size > MAX_ASSET_BYTES:
        raise BuildError(
            f"{TOKENIZER} has {file.stat().st_size:,} bytes, at most {MAX_ASSET_BYTES:,} are read",
            found_in=str(file),
        )
    try:
        tokenizer = decode_json(file.read_bytes(), _Tokenizer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BuildError(
            f"{TOKENIZER} is not a tokenizer: {error}",
            found_in=str(file),
            remedy="download the file again, or save the tokenizer with save_pretrained",
        ) from error
    vocab = tokenizer.model.vocab
    numbers = list(vocab.values()) if isinstance(vocab, dict) else list(range(len(vocab)))
    numbers += [token.id for token in tokenizer.added_tokens]
    last = max(numbers, default=-1)
    if last < 0 or last >= vocabulary:
        raise BuildError(
            f"the tokenizer has {counted(len(set(numbers)), 'token')} with numbers up to {last}, "
            f"and the model's vocabulary has {counted(vocabulary, 'token')}",
            found_in=str(file),
            remedy="give the tokenizer that belongs to the model, or resize the embeddings of the "
            "model to the tokenizer",
        )

"""Facts and files of a bundle whose model generates texts.

The files lie at the bundle's root, as onnxruntime-genai expects them: `genai_config.json` names the
model file of the first variant, and describes the inputs, the cache and the outputs of the decoder.
The files are not encrypted in an encrypted bundle: only variants and golden samples are.
"""

from collections.abc import Iterable
from typing import Annotated, Literal

import msgspec

from edgepack.bundle.adapters import AdapterPlaces
from edgepack.errors import BundleError

GENAI_CONFIG = "genai_config.json"
TOKENIZER = "tokenizer.json"
GOLDEN_TEXTS = "golden_texts.json"
"""Of a model that makes vectors of texts: texts with their tokens and vectors."""

ASSETS = (
    GENAI_CONFIG,
    TOKENIZER,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "generation_config.json",
)
"""Names of the files, all at the root of the bundle."""

MAX_ASSET_BYTES = 64 * 1024 * 1024
"""Of a file. The tokenizer of Gemma 3, with 262,144 tokens, has 33 MB."""

MAX_CONTEXT = 2**24
MAX_VOCABULARY = 2**24


class Generation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Facts that a device must know before it fetches a model that generates texts.

    Attributes:
        engine: Runtime of the decoder.
        context: Tokens of prompt and answer together, at most.
        vocabulary: Tokens that the logits are of.
        cache_bytes_per_token: Bytes of keys and values that a text takes per token.
        prompts: Golden samples that are prompts with answers.
        adapters: Places for adapters; None if the base was built without these.
    """

    engine: Literal["onnxruntime"] = "onnxruntime"
    context: Annotated[int, msgspec.Meta(ge=1, le=MAX_CONTEXT)]
    vocabulary: Annotated[int, msgspec.Meta(ge=1, le=MAX_VOCABULARY)]
    cache_bytes_per_token: Annotated[int, msgspec.Meta(ge=1, le=2**32)]
    prompts: Annotated[int, msgspec.Meta(ge=0, le=2**20)] = 0
    adapters: AdapterPlaces | None = None

    @property
    def cache_bytes(self) -> int:
        """Bytes of the cache of a text that fills the context."""
        return self.context * self.cache_bytes_per_token


class FixedNames:
    """Names of the tensors of a decoder with fixed shapes.

    Inputs: tokens and their positions, int32 [1, tokens]; the bias of the scores, float32
    [1, 1, tokens, context + tokens], and another for layers with a window; the cache, [1, heads,
    context, size] each. Outputs: the logits, and the keys and values of the tokens alone.
    """

    tokens = "input_ids"
    positions = "position_ids"
    bias = "attention_bias"
    local_bias = "local_attention_bias"
    past = "past_key_values."
    present = "present."
    logits = "logits"


HIDDEN_BIAS = -100.0
"""Bias of a hidden place: exp(-100) is 0, and 16 bits still tell the scores apart."""


def is_asset(path: str) -> bool:
    """Return True for the files at the bundle's root that a model of texts needs."""
    return path in ASSETS or path == GOLDEN_TEXTS


class GoldenText(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Text with its tokens, and its vector by the float model.

    Attributes:
        text: The text.
        tokens: Its tokens, with special tokens.
        vector: float32, little-endian; base64 in JSON.
    """

    text: str
    tokens: list[int]
    vector: bytes


def check_assets(needed: Iterable[str], sizes: Iterable[tuple[str, int]], *, found_in: str) -> None:
    """Check that a bundle has the files that its texts need, and none that is too large.

    Args:
        needed: Names of these files; empty for a model without texts.
        sizes: Path and size in bytes of the bundle's shared files.
        found_in: Place of the facts, for messages.

    Raises:
        BundleError: A file is missing or too large.
    """
    found = {path: size_bytes for path, size_bytes in sizes if is_asset(path)}
    for path, size_bytes in found.items():
        if size_bytes > MAX_ASSET_BYTES:
            raise BundleError(
                f"'{path}' has {size_bytes} bytes, at most {MAX_ASSET_BYTES} are read",
                found_in=found_in,
            )
    for path in needed:
        if path not in found:
            raise BundleError(
                f"the bundle's model is for texts, but '{path}' is not among its files",
                found_in=found_in,
            )

"""Facts and files of a source model that generates texts."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from edgepack.bundle.adapters import AdapterPlaces


class TextSource(msgspec.Struct, frozen=True, kw_only=True):
    """Facts and files of a decoder.

    Attributes:
        context: Tokens of prompt and answer together, at most.
        vocabulary: Tokens that the logits are of.
        cache_bytes_per_token: Bytes of keys and values per token of a text.
        tokens, logits: Names of the input of tokens and of the output of scores.
        config: Content of `genai_config.json`, except for the name of the model's file.
        files: The other files for a device: tokenizer, template, settings.
        places: Places for adapters in the graph; None where they are not known.
        is_built: Whether edgepack built the graph from the folder's weights.
    """

    context: int
    vocabulary: int
    cache_bytes_per_token: int
    tokens: str
    logits: str
    config: Mapping[str, Any]
    files: tuple[Path, ...]
    places: AdapterPlaces | None = None
    is_built: bool = False

    @property
    def end(self) -> int | None:
        """Token that ends texts, the first of several; None if the folder states none."""
        stated = self.config["model"].get("eos_token_id")
        first = stated[0] if isinstance(stated, list) and stated else stated
        return first if isinstance(first, int) else None

    def config_for(self, model_file: str) -> bytes:
        """Return `genai_config.json` for a model file, relative to the folder of the result."""
        model = self.config["model"]
        decoder = model["decoder"] | {"filename": model_file}
        document = {**self.config, "model": model | {"decoder": decoder}}
        return msgspec.json.format(msgspec.json.encode(document, order="sorted"), indent=2) + b"\n"

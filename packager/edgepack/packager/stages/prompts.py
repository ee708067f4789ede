"""Folders of encoder-decoders with a tokenizer: how a text becomes tokens, and tokens a text."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgepack.agent.generation.tokenizing import TextTokenizer
from edgepack.agent.generation.vectors import has_tokenizers
from edgepack.bundle.chunks import read_bounded
from edgepack.bundle.generation import MAX_ASSET_BYTES, TOKENIZER
from edgepack.errors import BuildError, EdgepackError
from edgepack.packager.stages.described_texts import DescribedTexts
from edgepack.packager.stages.encoder_decoder import read_settings
from edgepack.stages.wiring import Wiring
from edgepack.tasks.inputs import PromptInput

_TOKENS, _MASK = "input_ids", "attention_mask"
_MOST_TOKENS = 32_768
"""Tokens of a text where the folder states no limit."""


def find_prompts(
    folder: Path, settings: Mapping[str, Any], wiring: Wiring
) -> tuple[DescribedTexts | None, str]:
    """Return how devices make texts of texts with a folder, and a sentence about it.

    Args:
        folder: The folder.
        settings: Its config.json.
        wiring: Of its graphs.

    Returns:
        The source; None for another model, and why devices take tokens, "" for a model without
        texts.

    Raises:
        BuildError: The tokenizer is malformed, or does not fit the model.
    """
    names = {one.name for one in wiring.inputs}
    if _TOKENS not in names or names - {_TOKENS, _MASK}:
        return None, ""
    tokenizer = folder / TOKENIZER
    reason = "" if tokenizer.is_file() else f"the folder has no {TOKENIZER}"
    if not reason and not has_tokenizers():
        reason = "the build needs pip install 'edgepack[generative]' to check the tokenizer"
    if reason:
        return None, f"Devices take tokens in place of texts with this model: {reason}."
    stated = read_settings(folder / "tokenizer_config.json")
    limits = (settings.get("max_position_embeddings"), stated.get("model_max_length"), _MOST_TOKENS)
    described = PromptInput(
        name=_TOKENS,
        mask=_MASK if _MASK in names else "",
        max_tokens=int(min(one for one in limits if isinstance(one, int | float) and one >= 1)),
        output=wiring.outputs[0],
        vocabulary=settings["vocab_size"],
    )
    try:
        TextTokenizer(read_bounded(tokenizer, MAX_ASSET_BYTES), described.vocabulary)
    except EdgepackError as error:
        raise BuildError(error.problem, found_in=str(tokenizer), remedy=error.remedy) from error
    return DescribedTexts(described=described, tokenizer=tokenizer), (
        f"Devices make texts of texts: {described.words}."
    )

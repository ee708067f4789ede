"""Preparation of an input whose text a device gives, with the tokenizer of the text."""

from pathlib import Path

import msgspec

from edgepack.tasks.inputs import PromptInput, SoundInput


class DescribedTexts(msgspec.Struct, frozen=True, kw_only=True):
    """Pipeline that makes texts of sounds or of texts.

    Attributes:
        described: The input.
        tokenizer: The `tokenizer.json`.
    """

    described: SoundInput | PromptInput
    tokenizer: Path

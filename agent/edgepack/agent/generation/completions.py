"""Texts of texts: an encoder-decoder makes a translation or a summary."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from edgepack.agent.generation.tokenizing import LETTERS_PER_TOKEN, TextTokenizer
from edgepack.agent.runtime.sessions import SessionTensor, Tensor
from edgepack.bundle.generation import TOKENIZER
from edgepack.errors import BundleError
from edgepack.tasks.inputs import PromptInput

Run = Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]


class Completion(NamedTuple):
    """Text of a text.

    Attributes:
        text: The text.
        prompt_tokens, completion_tokens: Tokens of both texts.
        finish_reason: `stop` at an end token, `length` at the limit.
    """

    text: str
    prompt_tokens: int
    completion_tokens: int
    finish_reason: str


class Completer:
    """Tokenizer of an encoder-decoder; for any number of threads.

    Args:
        described: The input of texts.
        inputs: Inputs of the model.
        tokenizer: A `tokenizer.json`.

    Raises:
        BundleError: The files do not fit the model.
        DeviceError: The package of tokenizers is not installed.
    """

    def __init__(
        self, described: PromptInput, inputs: Sequence[SessionTensor], tokenizer: bytes
    ) -> None:
        self.described = described
        self._tokenizer = TextTokenizer(tokenizer, described.vocabulary)
        self._special = self._tokenizer.special_tokens()
        self._inputs = tuple(inputs)
        named = {described.name, described.mask} - {""}
        if {one.name for one in inputs} != named or any(len(one.shape) != 2 for one in inputs):
            raise BundleError(
                f"the model takes {', '.join(f'{one.name} {list(one.shape)}' for one in inputs)}, "
                f"and a text fills {', '.join(sorted(named))}",
                found_in=TOKENIZER,
                remedy="build the bundle from the folder of its model",
            )

    def feeds_of(self, text: str) -> dict[str, Tensor]:
        """Return the inputs of a text.

        Raises:
            ValueError: The text is empty, too long, or cannot be read.
        """
        most = self.described.max_tokens
        if not text:
            raise ValueError("the text is empty")
        if len(text) > LETTERS_PER_TOKEN * most:
            raise ValueError(f"the text has {len(text)} characters, the model reads {most} tokens")
        tokens = self._tokenizer.tokens_of(text, has_special=False)
        if not 0 < len(tokens) <= most:
            raise ValueError(f"the text has {len(tokens)} tokens, the model reads 1 to {most}")
        ids = np.array([tokens])
        values = {self.described.mask: np.ones_like(ids), self.described.name: ids}
        return {one.name: values[one.name].astype(one.dtype) for one in self._inputs}

    def text_of(
        self, feeds: Mapping[str, Tensor], outputs: Mapping[str, Tensor], most: int | None = None
    ) -> Completion:
        """Return the text of the outputs.

        Args:
            feeds: Inputs of the other text.
            outputs: Of the model.
            most: Tokens at most; None for all.
        """
        made: list[int] = outputs[self.described.output].ravel().tolist()
        own = [token for token in made if token not in self._special]
        is_cut = most is not None and len(own) > most
        return Completion(
            text=self._tokenizer.decode(own[:most]),
            prompt_tokens=feeds[self.described.name].shape[1],
            completion_tokens=len(own[:most]),
            finish_reason="stop" if made[-1] in self._special and not is_cut else "length",
        )

    def complete(self, text: str, run: Run, most: int | None = None) -> Completion:
        """Return the text of a text.

        Args:
            text: The text.
            run: Runs an inference.
            most: Tokens of the result, at most; None for all.

        Raises:
            ValueError: The text does not fit.
            Exception: Whatever `run` raises.
        """
        feeds = self.feeds_of(text)
        return self.text_of(feeds, run(feeds), most)

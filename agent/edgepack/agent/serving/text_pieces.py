"""Pieces of a text, for an application: written in the process, or by the model server."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import NamedTuple

from edgepack.agent.generation.texts import TextPiece
from edgepack.agent.serving.closing import Closing
from edgepack.wire.orders import BundleRef


class GeneratedText(NamedTuple):
    """A whole text.

    Attributes:
        text: Its characters.
        tokens: Its tokens; an end token is the last.
        finish_reason: `stop` at an end token or a stop string, `length` at the limit.

    Example:
        ```python
        from edgepack.agent import GeneratedText, open_model

        def is_cut(text: GeneratedText) -> bool:
            return text.finish_reason == "length"

        with open_model("chat") as model:
            text = model.generate("Once upon a time", max_tokens=20).whole()
            print(text.text, "…" if is_cut(text) else "")
        ```
    """

    text: str
    tokens: tuple[int, ...]
    finish_reason: str


class Generation(Closing, ABC):
    """Pieces of a text, in order; for one thread at a time.

    Made by `Model.generate`. Iterate over the pieces, or take the `whole` text. A text that is not
    read to its end is closed by `close`, as a context manager, or with the last reference.

    Example:
        ```python
        from edgepack.agent import Generation, open_model

        def show(generation: Generation) -> None:
            for piece in generation:
                print(piece.text, end="", flush=True)

        with open_model("chat") as model:
            show(model.generate([{"role": "user", "content": "Name a river."}], max_tokens=50))
        ```
    """

    def __iter__(self) -> Iterator[TextPiece]:
        return self

    @abstractmethod
    def __next__(self) -> TextPiece:
        """Return the next piece.

        Raises:
            DeviceError: The provider failed, or a newer release serves and the text's time for its
                own is over.
            ValueError: The model is closed.
        """

    @property
    @abstractmethod
    def bundle(self) -> BundleRef:
        """The bundle that writes the text."""

    @property
    @abstractmethod
    def prompt_tokens(self) -> int:
        """Tokens of the prompt."""

    @property
    @abstractmethod
    def completion_tokens(self) -> int:
        """Tokens written so far."""

    @property
    @abstractmethod
    def first_token_ms(self) -> float:
        """Milliseconds until the first token; 0 before."""

    @property
    @abstractmethod
    def token_ms(self) -> float:
        """Mean milliseconds of each token after the first; 0 before the second."""

    def whole(self) -> GeneratedText:
        """Return the rest of the text, at its end."""
        pieces = list(self)
        return GeneratedText(
            "".join(piece.text for piece in pieces),
            tuple(piece.token for piece in pieces),
            pieces[-1].finish_reason if pieces else "",
        )

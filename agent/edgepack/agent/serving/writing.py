"""Texts that a person asks of a model."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from edgepack.agent.generation.grammar import Schema
from edgepack.agent.generation.texts import Prompt, TextRequest
from edgepack.agent.serving.text_pieces import Generation


class Writing(ABC):
    """Method that writes texts; a subclass says which release writes."""

    @abstractmethod
    def _begin_text(self, request: TextRequest) -> Generation:
        """Return the pieces of a text."""

    def generate(
        self,
        prompt: Prompt,
        *,
        max_tokens: int | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | None = None,
        stop: Sequence[str] = (),
        adapter: str | None = None,
        schema: Schema | None = None,
    ) -> Generation:
        """Write a text, token by token; all tokens come from the release that serves now.

        A text counts as one inference. Its latency is the mean time of a token after the first.

        Args:
            prompt: A text to continue; or messages to answer, each with `role` and `content`, which
                the chat template of the release makes a prompt.
            max_tokens: New tokens at most; None fills the context.
            temperature: Divisor of the logits; 0 takes the likeliest token. None takes the value
                of the release, as for `top_k` and `top_p`.
            top_k: Likeliest tokens that are drawn from; 0 for all.
            top_p: Least sum of the probabilities of the likeliest tokens that are drawn from.
            seed: Start of the random numbers: the same seed gives the same text on this device.
            stop: Strings that end the text, and are not part of the text.
            adapter: Name of an adapter for this model, which is a release of its own on the device;
                None for the model alone.
            schema: JSON schema that the text follows: a text that ends with `stop` is valid JSON
                by it. Needs `edgepack[json]`.

        Returns:
            The pieces of the text. A replaced release is held for at most an hour.

        Raises:
            ValueError: The prompt or a value does not fit, an adapter is missing, the model writes
                no texts, the schema cannot be used, or the model is closed.
            DeviceError: There is no memory for the cache or the adapter, the adapter is for another
                release of the model, or a package is not installed.

        Example:
            ```python
            from edgepack.agent import open_model

            with open_model("chat") as model:
                for piece in model.generate("Once upon a time", max_tokens=50, temperature=0.8):
                    print(piece.text, end="")
            ```
        """
        request = TextRequest(
            prompt=prompt,
            max_tokens=max_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            seed=seed,
            stop=stop,
            adapter=adapter,
            schema=schema,
        )
        return self._begin_text(request)

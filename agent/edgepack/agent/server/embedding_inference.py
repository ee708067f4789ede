"""Vectors of a request's texts, all of one release."""

import base64
from collections.abc import Sequence

import msgspec
import numpy as np

from edgepack.agent.generation.vectors import Rows, Text
from edgepack.agent.inference_protocol.text_messages import (
    EmbeddingAnswer,
    EmbeddingFacts,
    EmbeddingRequest,
    EmbeddingUsage,
)
from edgepack.agent.server.http_messages import HttpError, Response
from edgepack.agent.server.long_inference import LongInference
from edgepack.agent.server.statistics import Stopwatch
from edgepack.agent.server.text_replies import read_body
from edgepack.agent.serving.following import Follower

MOST_TEXTS = 2048
MOST_TOKENS = 300_000
"""Texts of a request and their tokens together, at most: the limits of OpenAI's own server."""


class EmbeddingInference(LongInference):
    """Vectors of a request's texts; a thread of the model makes them one after the other.

    Args:
        request: The request.
        most_tokens: Tokens of a text, at most; 0 for the model's limit.
        watch: Times.
    """

    def __init__(self, request: EmbeddingRequest, most_tokens: int, watch: Stopwatch) -> None:
        super().__init__(watch)
        self._request, self._texts = request, _texts_of(request)
        self._most_tokens = most_tokens
        self._rows: list[Rows] = []
        self._tokens = 0

    def run(self, follower: Follower) -> None:
        """Make the vectors in any thread.

        Raises:
            ValueError: A text does not fit.
            TextCancelledError: The request was cancelled.
            Exception: Whatever an inference raises.
        """
        serving, wanted = follower.serving, self._request.dimensions
        tokens = serving.tokens_of(self._texts)
        described = serving.description.text
        if wanted is not None and described is not None and wanted != described.dimensions:
            raise ValueError(
                f"the model gives {described.dimensions} dimensions, and shortens no vectors to "
                f"{wanted}: leave dimensions out"
            )
        self._tokens = sum(map(len, tokens))
        longest = max(map(len, tokens))
        if self._most_tokens and longest > self._most_tokens:
            raise ValueError(
                f"a text has {longest} tokens, and the server allows {self._most_tokens}"
            )
        if self._tokens > MOST_TOKENS:
            raise ValueError(
                f"the texts have {self._tokens} tokens together, at most {MOST_TOKENS} are allowed"
            )
        for one in tokens:
            self.note_next()
            self._rows.append(serving.vector_of(one))
        self.bundle = serving.pointer.bundle

    def response(self, version: str) -> Response:
        """Return the vectors."""
        answer = EmbeddingAnswer(
            data=[
                EmbeddingFacts(index=index, embedding=self._encode(row))
                for index, row in enumerate(self._rows)
            ],
            model=self._request.model,
            system_fingerprint=version,
            usage=EmbeddingUsage(prompt_tokens=self._tokens, total_tokens=self._tokens),
        )
        return Response(200, (msgspec.json.encode(answer),))

    def _encode(self, row: Rows) -> list[float] | str:
        if self._request.encoding_format == "base64":
            return base64.b64encode(row.astype("<f4").tobytes()).decode()
        values: list[float] = row.astype(np.float64).tolist()
        return values


def read_embedding(content: memoryview) -> EmbeddingRequest:
    """Return a request for vectors.

    Raises:
        HttpError: The request is malformed.
    """
    request: EmbeddingRequest = read_body(content, EmbeddingRequest)
    return request


def _texts_of(request: EmbeddingRequest) -> Sequence[Text]:
    """Return the texts of a request.

    Raises:
        HttpError: There are none or too many, or the list mixes kinds.
    """
    given = request.input
    if isinstance(given, str):
        return [given]
    if given and all(isinstance(one, int) for one in given):
        return [[one for one in given if isinstance(one, int)]]
    texts = [one for one in given if not isinstance(one, int)]
    if not given or len(texts) < len(given) or len({type(one) for one in texts}) > 1:
        raise HttpError(400, "input is a text, texts, the tokens of a text, or lists of tokens")
    if len(texts) > MOST_TEXTS:
        raise HttpError(400, f"a request has at most {MOST_TEXTS} texts, not {len(texts)}")
    return texts

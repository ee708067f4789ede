"""Messages of OpenAI's protocol for texts, as far as a device has use for them."""

from typing import Annotated, Any, Literal

import msgspec

from edgepack.wire.orders import BundleRef


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a stream: whether its last event has the number of tokens."""

    include_usage: bool = False


class SchemaFormat(msgspec.Struct, frozen=True, kw_only=True):
    """Schema of a text; name, description and strictness change nothing: every schema holds."""

    name: str = ""
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, frozen=True, kw_only=True):
    """Form of a text: free, any JSON object, or JSON by a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: SchemaFormat | None = None


class TextSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that all requests for a text have.

    Attributes:
        model: Name of the model, or of an adapter.
        adapter: Name of an adapter for the model; None for the model as named.
        max_tokens: New tokens at most.
        temperature, top_p, top_k, seed: Choice of tokens.
        stop: A string that ends the text, or several.
        stream: Whether the text comes piece by piece.
        stream_options: Options of the stream.
        return_token_ids: Whether each event of a stream is a piece with its token.
        response_format: Form of the text; None for a free text.
        n, logprobs, top_logprobs, logit_bias, presence_penalty, frequency_penalty, tools,
            best_of, echo, suffix: Accepted only with a value that changes nothing.
    """

    model: str
    adapter: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    return_token_ids: bool = False
    n: int | None = 1
    logprobs: bool | int | None = None
    top_logprobs: int | None = None
    logit_bias: dict[str, float] | None = None
    presence_penalty: float | None = 0.0
    frequency_penalty: float | None = 0.0
    tools: list[Any] | None = None
    response_format: ResponseFormat | None = None
    best_of: int | None = 1
    echo: bool | None = False
    suffix: str | None = None


class ChatRequest(TextSettings, frozen=True, kw_only=True):
    """Request for an answer to messages."""

    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None


class CompletionRequest(TextSettings, frozen=True, kw_only=True):
    """Request for the continuation of a text."""

    prompt: str | list[str]


class PromptUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of a prompt that an earlier text computed."""

    cached_tokens: int = 0


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptUsage = PromptUsage()


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Answer, or a part of an answer."""

    role: str = ""
    content: str | None = None


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    """Answer with the reason of its end."""

    index: int = 0
    message: ChatMessage
    finish_reason: str
    logprobs: None = None


class ChatDelta(msgspec.Struct, frozen=True, kw_only=True):
    """Part of an answer; the last part has the reason of the end."""

    index: int = 0
    delta: ChatMessage
    finish_reason: str | None = None
    logprobs: None = None
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class TextChoice(msgspec.Struct, frozen=True, kw_only=True):
    """Continuation, or a part of a continuation."""

    index: int = 0
    text: str
    finish_reason: str | None = None
    logprobs: None = None
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class _TextAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to a request for a text, or an event of a stream.

    Attributes:
        id: Id of the text.
        object: Kind of the answer.
        created: Seconds since the epoch.
        model: Name of the model.
        system_fingerprint: Version of the release that writes.
        usage: Tokens; None in events before the last.
        bundle: Release that writes, in events with tokens.
    """

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str
    usage: Usage | None = None
    bundle: BundleRef | msgspec.UnsetType = msgspec.UNSET


class ChatAnswer(_TextAnswer, frozen=True, kw_only=True):
    """Answer to messages."""

    choices: list[ChatChoice]


class ChatEvent(_TextAnswer, frozen=True, kw_only=True):
    """Part of an answer to messages."""

    choices: list[ChatDelta]


class CompletionAnswer(_TextAnswer, frozen=True, kw_only=True):
    """Continuation of a text, or a part of a continuation."""

    choices: list[TextChoice]


class EmbeddingRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Request for the vectors of texts.

    Attributes:
        model: Name of the model.
        input: A text, several texts, the tokens of a text, or the tokens of several texts.
        encoding_format: Whether a vector is a list of numbers, or base64 of float32, little-endian.
        dimensions: Accepted only as the number of values that the model gives.
        user: Not used.
    """

    model: str
    input: str | list[str | int | list[int]]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None
    user: str | None = None


class EmbeddingFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Vector of a text, a list of numbers or base64."""

    object: str = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of tokens, with special tokens."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Vectors of texts, in their order; `system_fingerprint` is the version of the release."""

    object: str = "list"
    data: list[EmbeddingFacts]
    model: str
    system_fingerprint: str
    usage: EmbeddingUsage


_WAVE = {"type": "string", "contentMediaType": "audio/wav"}


class TranscriptionForm(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Request for the text of a sound, a form of parts.

    Attributes:
        file: A WAV file.
        model: Name of the model.
        response_format: Whether the answer is JSON, or the text alone.
        language, prompt, temperature: Accepted only with a value that changes nothing.
    """

    file: Annotated[Any, msgspec.Meta(extra_json_schema=_WAVE)]
    model: str
    response_format: Literal["json", "text"] = "json"
    language: str = ""
    prompt: str = ""
    temperature: str = ""

    @property
    def is_greedy(self) -> bool:
        """True if the likeliest tokens are asked for."""
        try:
            return not self.temperature or float(self.temperature) == 0.0
        except ValueError:
            return False


class TranscriptionUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Duration of a sound."""

    type: Literal["duration"] = "duration"
    seconds: float


class Transcription(msgspec.Struct, frozen=True, kw_only=True):
    """Text of a sound; `system_fingerprint` is the version of the release."""

    text: str
    usage: TranscriptionUsage
    system_fingerprint: str


class TextModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A model of texts, or an adapter; `parent` is the model of an adapter."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "edgepack"
    parent: str | msgspec.UnsetType = msgspec.UNSET


class TextModels(msgspec.Struct, frozen=True, kw_only=True):
    """Models of texts."""

    object: str = "list"
    data: list[TextModelFacts]


class TextError(msgspec.Struct, frozen=True, kw_only=True):
    """Error in OpenAI's form."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class TextErrorAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer with an error."""

    error: TextError

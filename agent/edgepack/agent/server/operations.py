"""Operations of the model server: a row for each method and path.

Routes and the OpenAPI description come from this table.
"""

from typing import Any, NamedTuple

from edgepack.agent.inference_protocol.messages import (
    Empty,
    ImageAnswer,
    InferRequest,
    InferResponse,
    Live,
    ModelIndex,
    ModelMetadata,
    ModelNames,
    ModelReady,
    Ready,
    RegionStatus,
    RegisterRequest,
    SequenceAnswer,
    SequenceRequest,
    ServerMetadata,
)
from edgepack.agent.inference_protocol.text_messages import (
    ChatAnswer,
    ChatRequest,
    CompletionAnswer,
    CompletionRequest,
    EmbeddingAnswer,
    EmbeddingRequest,
    TextModelFacts,
    TextModels,
    Transcription,
    TranscriptionForm,
)
from edgepack.agent.server.statistics import Statistics


class Operation(NamedTuple):
    """Operation of the server.

    Attributes:
        name: Name of the function that answers.
        method: Of HTTP.
        path: Path; open parts are in braces.
        text: Summary.
        gives: Type of the answer; None for a text.
        takes: Type of the request's JSON or form, `bytes` for a file; None without a body.
    """

    name: str
    method: str
    path: str
    text: str
    gives: Any
    takes: Any = None


TEXTS = "/v1/"
"""Beginning of the paths of OpenAI's protocol."""
_SHARED = "/v2/systemsharedmemory"
_FIRST = (
    Operation("describe_server", "GET", "/v2", "Describe the server.", ServerMetadata),
    Operation("describe_api", "GET", "/v2/openapi.json", "Describe all operations.", dict),
    Operation("answer_live", "GET", "/v2/health/live", "Return whether the server works.", Live),
    Operation("answer_ready", "GET", "/v2/health/ready", "Return whether all models serve.", Ready),
    Operation("list_models", "GET", "/v2/models", "List the models that serve.", ModelNames),
    Operation("answer_all", "GET", "/v2/models/stats", "Return all statistics.", Statistics),
    Operation(
        "list_repository",
        "POST",
        "/v2/repository/index",
        "List all models with their states.",
        list[ModelIndex],
    ),
    Operation("render_metrics", "GET", "/metrics", "Return metrics for Prometheus.", None),
    Operation(
        "begin_sequence",
        "POST",
        "/v2/models/{model}/sequences",
        "Begin inferences that run on one release.",
        SequenceAnswer,
        SequenceRequest,
    ),
    Operation(
        "end_sequence",
        "POST",
        "/v2/models/{model}/sequences/{sequence}/end",
        "End a sequence.",
        Empty,
    ),
    Operation(
        "list_regions",
        "GET",
        f"{_SHARED}/status",
        "List regions of shared memory.",
        list[RegionStatus],
    ),
    Operation(
        "list_regions",
        "GET",
        f"{_SHARED}/region/{{region}}/status",
        "Return a region of shared memory.",
        list[RegionStatus],
    ),
    Operation(
        "register",
        "POST",
        f"{_SHARED}/region/{{region}}/register",
        "Register a region of shared memory.",
        Empty,
        RegisterRequest,
    ),
    Operation(
        "unregister",
        "POST",
        f"{_SHARED}/region/{{region}}/unregister",
        "Forget a region of shared memory.",
        Empty,
    ),
    Operation(
        "unregister",
        "POST",
        f"{_SHARED}/unregister",
        "Forget all regions of the user.",
        Empty,
    ),
    Operation("list_text_models", "GET", "/v1/models", "List models of texts.", TextModels),
    Operation(
        "describe_text_model",
        "GET",
        "/v1/models/{model}",
        "Describe a model of texts.",
        TextModelFacts,
    ),
    Operation(
        "complete_chat", "POST", "/v1/chat/completions", "Answer messages.", ChatAnswer, ChatRequest
    ),
    Operation(
        "complete_text",
        "POST",
        "/v1/completions",
        "Continue a text.",
        CompletionAnswer,
        CompletionRequest,
    ),
    Operation(
        "embed_texts",
        "POST",
        "/v1/embeddings",
        "Return the vectors of texts.",
        EmbeddingAnswer,
        EmbeddingRequest,
    ),
    Operation(
        "transcribe_sound",
        "POST",
        "/v1/audio/transcriptions",
        "Return the text of a sound.",
        Transcription,
        TranscriptionForm,
    ),
)
_OF_MODELS = tuple(
    row._replace(path=place + row.path)
    for place in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}")
    for row in (
        Operation("describe_model", "GET", "", "Describe a model.", ModelMetadata),
        Operation("answer_model", "GET", "/ready", "Return whether a model serves.", ModelReady),
        Operation("answer_statistics", "GET", "/stats", "Return statistics.", Statistics),
        Operation("infer", "POST", "/infer", "Run an inference.", InferResponse, InferRequest),
        Operation("answer_image", "POST", "/image", "Answer a picture.", ImageAnswer, bytes),
    )
)
OPERATIONS = (*_FIRST, *_OF_MODELS)

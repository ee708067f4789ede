"""Answers of the operations for texts; see `operations`."""

import asyncio
import logging
from collections.abc import Callable

import msgspec

from edgepack.agent.generation.texts import TextRequest
from edgepack.agent.inference_protocol.text_messages import TextModels, TextSettings
from edgepack.agent.server.call import Call
from edgepack.agent.server.completion_inference import CompletionInference
from edgepack.agent.server.embedding_inference import EmbeddingInference, read_embedding
from edgepack.agent.server.hosted_model import HostedModel, Inference, find_version
from edgepack.agent.server.hosting import Hosting
from edgepack.agent.server.http_messages import FAULT, HttpError, Response
from edgepack.agent.server.statistics import Stopwatch
from edgepack.agent.server.text_replies import (
    CHAT,
    COMPLETION,
    TextForm,
    TextReply,
    describe_text_models,
    read_chat,
    read_completion,
    text_error_response,
)
from edgepack.agent.server.transcription_inference import (
    TranscriptionInference,
    read_transcription,
)

log = logging.getLogger(__name__)

Read = Callable[[memoryview], tuple[TextSettings, TextRequest]]


class TextAnswers:
    """Answers of the operations for texts; used by the event loop's thread alone.

    Args:
        hosting: The models.
    """

    def __init__(self, hosting: Hosting) -> None:
        self._hosting = hosting
        self._loop = asyncio.get_running_loop()

    def list_text_models(self, call: Call) -> Response:
        """List the models of texts."""
        models = self._hosting.models.values()
        found = describe_text_models(one for one in models if _is_of_texts(one))
        return Response(200, (msgspec.json.encode(TextModels(data=found)),))

    def describe_text_model(self, call: Call) -> Response:
        """Describe a model of texts."""
        model, adapter = self._find(call.names[0])
        facts = describe_text_models([model])
        own = next(one for one in facts if one.id == (adapter or model.name))
        return Response(200, (msgspec.json.encode(own),))

    def complete_chat(self, call: Call) -> None:
        """Answer messages; the answer comes later."""
        self._write(call, CHAT, read_chat)

    def complete_text(self, call: Call) -> None:
        """Continue a text, or make the text of an encoder-decoder; the answer comes later."""
        settings, request = read_completion(call.request.body)
        name = settings.model
        if self._hosting.base_of(name) or not _completes(self._hosting.find(name)):
            self._write(call, COMPLETION, lambda _: (settings, request))
            return
        if settings.adapter:
            raise HttpError(404, f"model {name[:100]!a} has no adapters")
        model, watch = self._hosting.find(name), Stopwatch()
        inference = CompletionInference(settings, request, model.most_text_tokens, watch)
        self._answer_long(call, model, inference, inference.response)

    def embed_texts(self, call: Call) -> None:
        """Return the vectors of texts; the answer comes later."""
        watch = Stopwatch()
        request = read_embedding(call.request.body)
        model = self._hosting.find(request.model)
        if not _has_vectors(model):
            raise HttpError(404, f"model '{request.model}' makes no vectors of texts")
        inference = EmbeddingInference(request, model.most_text_tokens, watch)
        self._answer_long(call, model, inference, inference.response)

    def transcribe_sound(self, call: Call) -> None:
        """Return the text of a sound; the answer comes later."""
        watch = Stopwatch()
        form, sound = read_transcription(call)
        model = self._hosting.find(form.model)
        if not _hears(model):
            raise HttpError(404, f"model {form.model[:100]!a} makes no texts of sounds")
        inference = TranscriptionInference(form, sound, watch)
        self._answer_long(call, model, inference, inference.response)

    def _answer_long(
        self,
        call: Call,
        model: HostedModel,
        inference: Inference,
        answer: Callable[[str], Response],
    ) -> None:
        """Run a request of several inferences, and respond at its end.

        Args:
            call: The request.
            model: The model.
            inference: The inferences.
            answer: Returns the response, by the version that ran.
        """
        inference.watch.read()

        def end(ended: Inference) -> None:
            response, _ = self._conclude(model, ended, answer)
            if response is not None:
                call.exchange.respond(response)

        self._begin_long(call, model, inference, end)

    def _find(self, name: str) -> tuple[HostedModel, str | None]:
        """Return a model of texts, by its name or by the name of an adapter.

        Returns:
            The model, and the adapter's name; None for the model alone.

        Raises:
            HttpError: The model does not serve, or is not for texts.
        """
        base = self._hosting.base_of(name)
        model = self._hosting.find(base or name)
        if not _is_of_texts(model):
            raise HttpError(404, f"model '{name}' makes no texts, and no vectors of texts")
        return model, name if base else None

    def _write(self, call: Call, form: TextForm, read: Read) -> None:
        """Write a text, and respond at its end or with its first piece.

        Raises:
            HttpError: The request is wrong, or too many requests wait.
        """
        watch = Stopwatch()
        settings, request = read(call.request.body)
        model, adapter = self._find(settings.model)
        if not model.follower.serving.has_texts:
            what = "answers no messages: POST /v1/completions" if _completes(model) else ""
            raise HttpError(404, f"model '{settings.model}' {what or 'writes no texts'}")
        most = model.most_text_tokens
        if adapter and settings.adapter not in (None, "", adapter):
            raise HttpError(
                400,
                f"the request names two adapters: model is '{adapter}', adapter is "
                f"{settings.adapter!a:.120}; give one of them, or model '{model.name}'",
            )
        adapter = settings.adapter or adapter
        request = msgspec.structs.replace(request, most_tokens=most, adapter=adapter)
        reply = TextReply(form, settings, request, settings.model, watch, self._in_loop)
        reply.stream_to(call.exchange.respond)
        watch.read()

        def end(inference: Inference) -> None:
            response, problem = self._conclude(
                model,
                inference,
                lambda version: None if reply.has_begun else reply.response(version),
            )
            text = reply.inference
            if text.first_ms:
                model.first_tokens.record(text.first_ms)
            if text.token_ms:
                model.further_tokens.record(text.token_ms)
            if reply.has_begun:
                reply.end(problem)
            elif response is not None:
                call.exchange.respond(response)

        self._begin_long(call, model, reply.inference, end)

    def _conclude(
        self, model: HostedModel, inference: Inference, answer: Callable[[str], Response | None]
    ) -> tuple[Response | None, HttpError | None]:
        """Count a request that has ended.

        Args:
            model: The model.
            inference: The request.
            answer: Returns the response of a good end, by the version that ran.

        Returns:
            The response, and the error if there is one.
        """
        problem: HttpError | None = None
        try:
            response = answer(find_version(model.name, inference))
        except HttpError as error:
            problem, response = error, text_error_response(error)
        except Exception:  # the outermost loop of what peers can cause
            log.exception("model=%s an answer fails because of a fault", model.name)
            problem = HttpError(500, FAULT)
            response = text_error_response(problem)
        inference.watch.add_to(model.statistics, is_good=problem is None)
        return response, problem

    def _begin_long(
        self,
        call: Call,
        model: HostedModel,
        inference: Inference,
        end: Callable[[Inference], None],
    ) -> None:
        """Run a request, which ends early once the client is gone.

        Raises:
            HttpError: Too many requests wait.
        """
        try:
            cancel = model.submit(inference, end)
        except HttpError:
            inference.watch.add_to(model.statistics, is_good=False)
            raise

        def stop() -> None:
            inference.cancel()
            if cancel is not None:
                cancel()

        call.exchange.on_lost(stop, is_long=True)

    def _in_loop(self, act: Callable[[], object]) -> None:
        """Call a function in the event loop's thread."""
        self._loop.call_soon_threadsafe(act)


def _has_vectors(model: HostedModel) -> bool:
    """Return True if a model makes vectors of texts."""
    return model.follower.serving.description.text is not None


def _hears(model: HostedModel) -> bool:
    """Return True if a model makes texts of sounds."""
    return model.follower.serving.description.sound is not None


def _completes(model: HostedModel) -> bool:
    """Return True if a model makes texts of texts."""
    return model.follower.serving.description.prompt is not None


def _is_of_texts(model: HostedModel) -> bool:
    """Return True if a model writes texts, or makes vectors of texts, or texts of sounds."""
    kinds = (_has_vectors, _hears, _completes)
    return model.follower.serving.has_texts or any(kind(model) for kind in kinds)

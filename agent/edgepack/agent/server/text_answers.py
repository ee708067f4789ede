"""Answers of the operations for texts; see `operations`."""

import asyncio
import logging
from collections.abc import Callable

import msgspec

from edgepack.agent.generation.texts import TextRequest
from edgepack.agent.inference_protocol.text_messages import TextModels, TextSettings
from edgepack.agent.server.call import Call
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
        """List the models that write texts."""
        models = self._hosting.models.values()
        found = describe_text_models(one for one in models if one.follower.serving.has_texts)
        return Response(200, (msgspec.json.encode(TextModels(data=found)),))

    def describe_text_model(self, call: Call) -> Response:
        """Describe a model that writes texts."""
        model, adapter = self._find(call.names[0])
        facts = describe_text_models([model])
        own = next(one for one in facts if one.id == (adapter or model.name))
        return Response(200, (msgspec.json.encode(own),))

    def complete_chat(self, call: Call) -> None:
        """Answer messages; the answer comes later."""
        self._write(call, CHAT, read_chat)

    def complete_text(self, call: Call) -> None:
        """Continue a text; the answer comes later."""
        self._write(call, COMPLETION, read_completion)

    def _find(self, name: str) -> tuple[HostedModel, str | None]:
        """Return a model that writes texts, by its name or by the name of an adapter.

        Returns:
            The model, and the adapter's name; None for the model alone.

        Raises:
            HttpError: The model does not serve, or writes no texts.
        """
        base = self._hosting.base_of(name)
        model = self._hosting.find(base or name)
        if not model.follower.serving.has_texts:
            raise HttpError(404, f"model '{name}' writes no texts")
        return model, name if base else None

    def _write(self, call: Call, form: TextForm, read: Read) -> None:
        """Write a text, and respond at its end or with its first piece.

        Raises:
            HttpError: The request is wrong, or too many requests wait.
        """
        watch = Stopwatch()
        settings, request = read(call.request.body)
        model, adapter = self._find(settings.model)
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
            problem: HttpError | None = None
            try:
                version = find_version(model.name, inference)
                response = None if reply.has_begun else reply.response(version)
            except HttpError as error:
                problem, response = error, text_error_response(error)
            except Exception:  # the outermost loop of what peers can cause
                log.exception("model=%s an answer fails because of a fault", model.name)
                problem = HttpError(500, FAULT)
                response = text_error_response(problem)
            watch.add_to(model.statistics, is_good=problem is None)
            text = reply.inference
            if text.first_ms:
                model.first_tokens.record(text.first_ms)
            if text.token_ms:
                model.further_tokens.record(text.token_ms)
            if reply.has_begun:
                reply.end(problem)
            elif response is not None:
                call.exchange.respond(response)

        try:
            cancel = model.submit(reply.inference, end)
        except HttpError:
            watch.add_to(model.statistics, is_good=False)
            raise

        def stop() -> None:
            reply.inference.cancel()
            if cancel is not None:
                cancel()

        call.exchange.on_lost(stop, is_long=True)

    def _in_loop(self, act: Callable[[], object]) -> None:
        """Call a function in the event loop's thread."""
        self._loop.call_soon_threadsafe(act)

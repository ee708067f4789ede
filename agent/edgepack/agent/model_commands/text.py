"""A text of the serving variant, for a person."""

import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from edgepack.agent.generation.completions import Completer
from edgepack.agent.generation.texts import TextModel, TextRequest
from edgepack.agent.model_commands.serving import find_runnable
from edgepack.agent.runtime.slot_opening import OpenedSlot, open_slot
from edgepack.agent.serving.adapters import adapt_texts, find_adapter
from edgepack.agent.state.pointer import ActivePointer
from edgepack.bundle.generation import TOKENIZER
from edgepack.errors import DeviceError
from edgepack.tasks.inputs import PromptInput


class WrittenText(msgspec.Struct, frozen=True, kw_only=True):
    """Text of a model.

    Attributes:
        name, version, variant, provider: The variant that wrote.
        text: The text.
        finish_reason: `stop` at an end token, `length` at the limit.
        prompt_tokens, completion_tokens: Tokens of the prompt and of the text.
        first_token_ms: Time to the first token, milliseconds: of an encoder-decoder, to the whole
            text.
        tokens_per_s: Tokens a second after the first token; 0 for a single token. Of an
            encoder-decoder, tokens a second.
    """

    name: str
    version: str
    variant: str
    provider: str
    text: str
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    first_token_ms: float
    tokens_per_s: float


def _complete(
    opened: OpenedSlot,
    pointer: ActivePointer,
    described: PromptInput,
    request: TextRequest,
    show: Callable[[str], object],
) -> WrittenText:
    """Make the text of an encoder-decoder, whole."""
    is_plain = isinstance(request.prompt, str) and request.adapter is None
    if request.temperature or request.stop or not is_plain:
        raise DeviceError(
            f"the bundle of '{pointer.bundle.name}' states how a text is made",
            remedy="leave --temperature, --stop and --adapter out",
        )
    completer = Completer(described, opened.session.inputs, opened.assets[TOKENIZER])
    began = time.perf_counter()
    try:
        made = completer.complete(str(request.prompt), opened.session.run, request.max_tokens)
    except ValueError as error:
        raise DeviceError(str(error), remedy="change the prompt") from error
    taken_s = time.perf_counter() - began
    show(made.text)
    return WrittenText(
        name=pointer.bundle.name,
        version=pointer.bundle.version,
        variant=pointer.choice.chosen,
        provider=pointer.choice.provider,
        text=made.text,
        finish_reason=made.finish_reason,
        prompt_tokens=made.prompt_tokens,
        completion_tokens=made.completion_tokens,
        first_token_ms=taken_s * 1000,
        tokens_per_s=made.completion_tokens / taken_s,
    )


def write_text(
    state_dir: Path,
    name: str,
    request: TextRequest,
    show: Callable[[str], object],
    *,
    is_chat: bool,
    threads: int,
) -> WrittenText:
    """Write a text by the serving variant; the text counts in no statistics.

    Args:
        state_dir: The agent's state folder.
        name: The model.
        request: The request; its prompt is a text.
        show: Called with each part of the text.
        is_chat: Whether the chat template, if the release has one, makes the prompt a message.
        threads: Threads within an operator; 0 leaves the number to ONNX Runtime.

    Raises:
        EdgepackError: Nothing serves, the variant cannot run, the model writes no texts, or the
            prompt does not fit.
    """
    pointer = find_runnable(state_dir, name)
    opened = open_slot(state_dir, pointer.digest, pointer.choice.chosen, threads=threads)
    facts = opened.manifest.facts
    if facts.description.prompt is not None:
        return _complete(opened, pointer, facts.description.prompt, request, show)
    if facts.generation is None:
        raise DeviceError(
            f"model '{name}' writes no texts", remedy=f"edgepack-agent infer {name} FILE"
        )
    texts = TextModel(opened.session, opened.assets)
    if request.adapter is not None:
        places = facts.generation.adapters
        try:
            adapter = find_adapter(state_dir, request.adapter, name)
        except ValueError as error:
            raise DeviceError(str(error), remedy="edgepack-agent install BUNDLE") from error
        texts = adapt_texts(state_dir, adapter, pointer, places, opened.session, texts)
        pointer = adapter
    if is_chat and texts.template.is_there:
        message = {"role": "user", "content": request.prompt}
        request = msgspec.structs.replace(request, prompt=[message])
    try:
        prepared = texts.prepare(request)
    except ValueError as error:
        raise DeviceError(str(error), remedy="change the prompt, or an option") from error
    taken_s: list[float] = []
    parts: list[str] = []
    reason = ""
    decoding = texts.begin(prepared.capacity)
    for piece in texts.write(prepared, decoding, lambda one_s, _: taken_s.append(one_s)):
        parts.append(piece.text)
        reason = piece.finish_reason
        show(piece.text)
    further_s = sum(taken_s[1:])
    return WrittenText(
        name=pointer.bundle.name,
        version=pointer.bundle.version,
        variant=pointer.choice.chosen,
        provider=pointer.choice.provider,
        text="".join(parts),
        finish_reason=reason,
        prompt_tokens=len(prepared.tokens),
        completion_tokens=len(taken_s),
        first_token_ms=taken_s[0] * 1000,
        tokens_per_s=(len(taken_s) - 1) / further_s if further_s else 0.0,
    )

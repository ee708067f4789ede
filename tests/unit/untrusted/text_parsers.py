"""Parsers of files and requests for texts."""

import json
from collections.abc import Callable, Iterator

from edgepack.agent.generation.template import SETTINGS_FILE, TEMPLATE_FILE, ChatTemplate
from edgepack.agent.generation.tokenizing import TextTokenizer
from edgepack.agent.generation.wiring import read_wiring
from edgepack.agent.server.http_messages import HttpError
from edgepack.agent.server.text_replies import read_chat, read_completion
from edgepack.errors import BundleError, DeviceError
from tests.simulators.text_bundles import TEMPLATE, VOCABULARY, make_config, make_tokenizer
from tests.unit.untrusted.table import Parser

MESSAGES = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes?"}]
REQUEST = {"model": "chat", "max_tokens": 5, "temperature": 0.5, "seed": 1, "stop": ["x"]}


def text_parsers() -> Iterator[Parser]:
    """Yield the parsers of texts."""
    settings = {"chat_template": TEMPLATE, "eos_token": {"content": "<|end|>"}}
    named = [{"name": "default", "template": TEMPLATE}]
    chat = REQUEST | {"messages": MESSAGES, "stream": True, "stream_options": {}}
    yield Parser(
        name="wiring of a decoder",
        seeds=(make_config().encode(),),
        read=read_wiring,
        errors=(BundleError,),
    )
    yield Parser(
        name="tokenizer",
        seeds=(make_tokenizer().encode(),),
        read=lambda content: TextTokenizer(content, VOCABULARY),
        errors=(BundleError,),
    )
    yield Parser(
        name="settings of a tokenizer",
        seeds=(
            json.dumps(settings).encode(),
            json.dumps(settings | {"chat_template": named}).encode(),
        ),
        read=lambda content: _render(ChatTemplate({SETTINGS_FILE: content})),
        errors=(BundleError,),
    )
    yield Parser(
        name="chat template",
        seeds=(
            TEMPLATE.encode(),
            b"{% macro f(x) %}{{ x ~ [x]|join('a') }}{% endmacro %}{{ f(1) }}",
        ),
        read=lambda content: _render(ChatTemplate({TEMPLATE_FILE: content})),
        errors=(BundleError,),
    )
    for name, read, request in (
        ("request for an answer", read_chat, chat),
        ("request for a text", read_completion, REQUEST | {"prompt": "a"}),
    ):
        yield Parser(
            name=name,
            seeds=(json.dumps(request).encode(),),
            read=_reading(read),
            errors=(DeviceError,),
        )


def _render(template: ChatTemplate) -> None:
    if template.is_there:
        try:
            template.render(MESSAGES)
        except ValueError as error:
            raise BundleError(str(error)) from error


def _reading(read: Callable[[memoryview], object]) -> Callable[[bytes], object]:
    def reading(content: bytes) -> object:
        try:
            return read(memoryview(content))
        except HttpError as error:
            raise DeviceError(error.problem) from error

    return reading

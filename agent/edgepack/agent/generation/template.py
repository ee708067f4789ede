"""Chat template of a release: messages become a prompt."""

from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any

import msgspec

from edgepack.agent.generation.tokenizing import missing_package
from edgepack.bundle.strict_json import convert_json, parse_json
from edgepack.errors import BundleError
from edgepack.text import printable

TEMPLATE_FILE = "chat_template.jinja"
SETTINGS_FILE = "tokenizer_config.json"
MAX_SETTINGS_BYTES = 8 * 1024 * 1024
MAX_TEMPLATE_BYTES = 256 * 1024
MOST_MESSAGES = 10_000

Message = Mapping[str, Any]


class _Named(msgspec.Struct, frozen=True):
    name: str
    template: str


class _AddedToken(msgspec.Struct, frozen=True):
    content: str


class TokenizerSettings(msgspec.Struct, frozen=True):
    """Used keys of `tokenizer_config.json`.

    Attributes:
        chat_template: The template, or several by name.
        bos_token, eos_token, pad_token, unk_token: Special tokens that templates write.
    """

    chat_template: str | list[_Named] | None = None
    bos_token: str | _AddedToken | None = None
    eos_token: str | _AddedToken | None = None
    pad_token: str | _AddedToken | None = None
    unk_token: str | _AddedToken | None = None


class ChatTemplate:
    """Chat template of a release; safe to use from several threads.

    Args:
        files: Files of the release by name: `TEMPLATE_FILE`, `SETTINGS_FILE`.

    Raises:
        DeviceError: The package is not installed.
        BundleError: A file is malformed, or too long.

    Attributes:
        is_there: Whether the release has a template.
    """

    def __init__(self, files: Mapping[str, bytes]) -> None:
        settings = _read_settings(files.get(SETTINGS_FILE))
        source = _source(settings, files.get(TEMPLATE_FILE))
        self._tokens = {
            name: value.content if isinstance(value, _AddedToken) else value
            for name in ("bos_token", "eos_token", "pad_token", "unk_token")
            if (value := getattr(settings, name)) is not None
        }
        self._guard = Lock()
        self.is_there = bool(source)
        if not self.is_there:
            return
        try:
            from edgepack.agent.generation.template_bounds import BoundedEnvironment
        except ModuleNotFoundError as error:
            raise missing_package(error) from error
        if len(source) > MAX_TEMPLATE_BYTES:
            raise BundleError(
                f"the chat template has {len(source)} bytes, at most {MAX_TEMPLATE_BYTES} are read",
                found_in=TEMPLATE_FILE,
                remedy="take the template that belongs to the model",
            )
        self._environment = BoundedEnvironment()
        try:
            self._template = self._environment.compile_bounded(source)
        except Exception as error:
            raise BundleError(
                f"the chat template cannot be read: {_said(error)}",
                found_in=TEMPLATE_FILE,
                remedy="correct the template, or take the template that belongs to the model",
            ) from error

    def render(self, messages: Sequence[Message]) -> str:
        """Return the prompt of messages, up to where the model answers.

        Args:
            messages: Each has `role` and `content`.

        Raises:
            ValueError: The release has no template, the messages are malformed, or the template
                rejects the messages or exceeds a limit.
        """
        if not self.is_there:
            raise ValueError("the release has no chat template: give the prompt as a text")
        checked = check_messages(messages)
        with self._guard:
            self._environment.begin()
            try:
                prompt: str = self._template.render(
                    messages=checked, add_generation_prompt=True, **self._tokens
                )
            except Exception as error:
                raise ValueError(f"the chat template fails: {_said(error)}") from error
        return prompt


def check_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return messages with plain texts.

    Raises:
        ValueError: A message is malformed, or there are too many.
    """
    if isinstance(messages, str | bytes) or not isinstance(messages, Sequence) or not messages:
        raise ValueError("messages are a list of objects with role and content")
    if len(messages) > MOST_MESSAGES:
        raise ValueError(f"there are {len(messages)} messages, {MOST_MESSAGES} at most are taken")
    return [_check_message(message, number) for number, message in enumerate(messages)]


def _check_message(message: Message, number: int) -> dict[str, Any]:
    role = message.get("role") if isinstance(message, Mapping) else None
    content = message.get("content") if isinstance(role, str) else None
    if isinstance(content, Sequence) and not isinstance(content, str):
        content = "".join(_text_of(part, number) for part in content)
    if not isinstance(content, str):
        raise ValueError(  # noqa: TRY004 - one kind of error for what does not fit
            f"message {number} needs a role and a text as its content"
        )
    return {**message, "content": content}


def _text_of(part: object, number: int) -> str:
    if isinstance(part, Mapping) and part.get("type") == "text":
        text = part.get("text")
        if isinstance(text, str):
            return text
    raise ValueError(f"message {number} has a part that is no text: the model takes texts")


def _read_settings(content: bytes | None) -> TokenizerSettings:
    if content is None:
        return TokenizerSettings()
    document = parse_json(content, limit_bytes=MAX_SETTINGS_BYTES, found_in=SETTINGS_FILE)
    return convert_json(document, TokenizerSettings, found_in=SETTINGS_FILE)


def _source(settings: TokenizerSettings, file: bytes | None) -> str:
    """Return the template; a file of its own comes first, as in transformers."""
    if file is not None:
        try:
            return file.decode()
        except UnicodeDecodeError as error:
            raise BundleError("the chat template is not UTF-8", found_in=TEMPLATE_FILE) from error
    found = settings.chat_template or ""
    if isinstance(found, str):
        return found
    return next((one.template for one in found if one.name == "default"), "")


def _said(error: Exception) -> str:
    """Return a line of a foreign error."""
    return printable(str(error)[:300]) or type(error).__name__

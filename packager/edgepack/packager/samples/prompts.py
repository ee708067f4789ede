"""Prompts with answers: a file of JSON objects, one a line.

    {"prompt": "The capital of France is", "answer": " Paris."}
    {"messages": [{"role": "user", "content": "What is 2 + 2?"}], "answer": "4"}

`messages` go through the chat template of the model's folder, as on a device. Without `answer`, the
last message is the answer if its role is `assistant`, as in data for fine-tuning.
"""

import codecs
import difflib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec

from edgepack.agent.generation.template import ChatTemplate
from edgepack.decoding import decode_json
from edgepack.errors import BuildError
from edgepack.packager.samples.formats import refuse_special

SUFFIX = ".jsonl"
MOST_FILE_BYTES = 256_000_000
MOST_LINES = 100_000
_TEXT_REMEDY = '{"prompt": "…"} on each line'
_CHAT = '{"messages": [{"role": "user", "content": "…"}], "answer": "…"}'
_REMEDY = f'{{"prompt": "…", "answer": "…"}} or {_CHAT}'
GIVE_PROMPTS = f"--calibration prompts.jsonl with {_CHAT} on each line"
_UTF8 = "save the file as UTF-8"
_NEAR = 0.82
"""Of a key to a known one: `anwser` has .83, `answer_id` .8."""


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A message of a chat."""

    role: str
    content: str


class _Line(msgspec.Struct, frozen=True, kw_only=True):
    answer: str | None = None
    prompt: str = ""
    messages: tuple[Message, ...] = ()


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt with its answer.

    Attributes:
        text: Text before the answer.
        answer: The answer.
        line: Number of its line, from 1.
        is_rendered: Whether a chat template made the text, with all special tokens.
    """

    text: str
    answer: str
    line: int
    is_rendered: bool = False


def read_prompts(path: Path, template: ChatTemplate) -> list[Prompt]:
    """Read a file of prompts with answers.

    Args:
        path: The file.
        template: Template of messages.

    Raises:
        BuildError: The file is too large or has no lines, or a line is malformed; the error names
            the line.
    """
    lines = [(number, _parse(line, path, number)) for number, line in read_lines(path)]
    return [
        Prompt(
            text=_render(line.messages, template, path, number) if line.messages else line.prompt,
            answer=line.answer or "",
            line=number,
            is_rendered=bool(line.messages),
        )
        for number, line in lines
    ]


def read_texts(path: Path) -> list[Prompt]:
    """Return the prompts of a file; answers ("" for none) are not needed.

    Args:
        path: The file.

    Raises:
        BuildError: See `read_prompts`.
    """
    texts = []
    for number, raw in read_lines(path):
        refuse = partial(refusal_of_line, path=path, number=number, remedy=_TEXT_REMEDY)
        line = _decode(raw, "a prompt", refuse)
        if not line.prompt:
            raise refuse("the prompt is missing or empty")
        if line.answer is not None and not line.answer.strip():
            raise refuse("the answer is empty: give the right text, or no 'answer'")
        texts.append(Prompt(text=line.prompt, answer=line.answer or "", line=number))
    return texts


def read_lines(path: Path) -> list[tuple[int, bytes]]:
    """Return the lines of a file that are not empty, with their numbers.

    Raises:
        BuildError: The file is too large or has no lines.
    """
    refuse_special(path)
    try:
        size = path.stat().st_size
        if size > MOST_FILE_BYTES:
            raise BuildError(
                f"{path.name} has {size:,} bytes, at most {MOST_FILE_BYTES:,} are read",
                found_in=str(path),
                remedy="give fewer prompts: 100 to 300 are usual",
            )
        raw = path.read_bytes().removeprefix(codecs.BOM_UTF8).split(b"\n")
    except OSError as error:
        raise BuildError(
            f"cannot read the prompts: {error.strerror or error}",
            found_in=str(path),
            remedy="check the path (--calibration, --evaluation)",
        ) from error
    numbered = [(number, line) for number, line in enumerate(raw, start=1) if line.strip()]
    if not 0 < len(numbered) <= MOST_LINES:
        raise BuildError(
            f"{path.name} has {len(numbered):,} lines, 1 to {MOST_LINES:,} are read",
            found_in=str(path),
            remedy=f"a line for each prompt: {_REMEDY}",
        )
    return numbered


def refusal_of_line(problem: str, path: Path, number: int, remedy: str) -> BuildError:
    """Return the error of a line."""
    return BuildError(problem, found_in=f"{path}, line {number}", remedy=remedy)


def _parse(raw: bytes, path: Path, number: int) -> _Line:
    refuse = partial(refusal_of_line, path=path, number=number, remedy=_REMEDY)
    line = _decode(raw, "a prompt with an answer", refuse)
    if bool(line.prompt) == bool(line.messages):
        raise refuse("a line has either 'prompt' or 'messages', and not an empty one")
    is_answered = bool(line.messages) and line.messages[-1].role == "assistant"
    if is_answered and line.answer:
        raise refuse("the last message is the assistant's, and there is an 'answer' besides")
    if is_answered:
        *before, last = line.messages
        line = _Line(answer=last.content, messages=tuple(before))
    if is_answered and not line.messages:
        raise refuse("no message comes before the assistant's")
    if not line.answer:
        raise refuse("the answer is missing or empty")
    return line


def _decode(raw: bytes, noun: str, refuse: Callable[..., BuildError]) -> _Line:
    """Return a line; reject a key that looks like a missing one."""
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise refuse("this is UTF-16", remedy=_UTF8)
    try:
        line, keys = decode_json(raw, _Line), decode_json(raw, dict[str, msgspec.Raw])
    except UnicodeDecodeError as error:
        raise refuse(f"this is not UTF-8: {error}", remedy=_UTF8) from error
    except (msgspec.MsgspecError, RecursionError) as error:
        raise refuse(f"this is not {noun}: {error}") from error
    missing = [name for name in _Line.__struct_fields__ if name not in keys]
    for key in keys:
        for near in difflib.get_close_matches(key.lower(), missing, n=1, cutoff=_NEAR):
            raise refuse(f"a line has no key {key!a}", remedy=f"write {near!r}")
    return line


def _render(messages: Sequence[Message], template: ChatTemplate, path: Path, number: int) -> str:
    """Return the text of a chat, up to where the answer begins."""
    if not template.is_there:
        raise refusal_of_line(
            "'messages' need a chat template, and the model's folder has none",
            path,
            number,
            "give 'prompt', or add chat_template.jinja to the model's folder",
        )
    try:
        return template.render([msgspec.structs.asdict(message) for message in messages])
    except ValueError as error:
        remedy = "check the template, and the roles of the messages"
        raise refusal_of_line(str(error), path, number, remedy) from error

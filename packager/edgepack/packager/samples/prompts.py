"""Prompts with answers: a file of JSON objects, one a line.

    {"prompt": "The capital of France is", "answer": " Paris."}
    {"messages": [{"role": "user", "content": "What is 2 + 2?"}], "answer": "4"}

`messages` go through the chat template of the model's folder. The template comes with the model, so
it runs in jinja2's immutable sandbox, in a child process with limits on time and memory.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import msgspec

from edgepack.agent.runtime.child import run_child
from edgepack.decoding import decode_json
from edgepack.errors import BuildError
from edgepack.packager.samples.formats import refuse_special
from edgepack.python_child import python_command
from edgepack.text import printable

SUFFIX = ".jsonl"
MOST_FILE_BYTES = 256_000_000
MOST_LINES = 100_000
_TEMPLATE_S = 60.0
_TEMPLATE_BYTES = 1_000_000_000
_COMMAND = python_command("edgepack.packager.samples.template_child")
_REMEDY = (
    '{"prompt": "…", "answer": "…"} or '
    '{"messages": [{"role": "user", "content": "…"}], "answer": "…"}'
)


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A message of a chat."""

    role: str
    content: str


class _Line(msgspec.Struct, frozen=True, kw_only=True):
    answer: str
    prompt: str | None = None
    messages: tuple[Message, ...] | None = None


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


class ChatTemplate(msgspec.Struct, frozen=True, kw_only=True):
    """Chat template of a model's folder.

    Attributes:
        source: The template, jinja2.
        found_in: Its file, for messages.
        tokens: Special tokens that a template may name: `bos_token` …
    """

    source: str
    found_in: str
    tokens: dict[str, str] = {}


class Rendered(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of the child that renders.

    Attributes:
        texts: A text for each chat.
        failed: Number of the chat that failed; -1 for none.
        problem: Why it failed.
    """

    texts: tuple[str, ...] = ()
    failed: int = -1
    problem: str = ""


def read_prompts(
    path: Path, template: ChatTemplate | None, template_s: float = _TEMPLATE_S
) -> list[Prompt]:
    """Read a file of prompts with answers.

    Args:
        path: The file.
        template: Template of messages; None if the model has none.
        template_s: Time limit of the template for all messages, seconds.

    Raises:
        BuildError: The file is too large or has no lines, or a line is malformed; the error names
            the line.
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
        raw = path.read_bytes().split(b"\n")
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
    lines = [(number, _parse(line, path, number)) for number, line in numbered]
    chats = [(number, line.messages) for number, line in lines if line.messages is not None]
    texts = iter(_render(chats, template, path, template_s) if chats else ())
    return [
        Prompt(
            text=next(texts) if line.prompt is None else line.prompt,
            answer=line.answer,
            line=number,
            is_rendered=line.prompt is None,
        )
        for number, line in lines
    ]


def refusal_of_line(problem: str, path: Path, number: int, remedy: str) -> BuildError:
    """Return the error of a line."""
    return BuildError(problem, found_in=f"{path}, line {number}", remedy=remedy)


def _parse(raw: bytes, path: Path, number: int) -> _Line:
    refuse = partial(refusal_of_line, path=path, number=number, remedy=_REMEDY)
    try:
        line = decode_json(raw, _Line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise refuse(f"this is not a prompt with an answer: {error}") from error
    if (line.prompt is None) == (line.messages is None):
        raise refuse("a line has either 'prompt' or 'messages'")
    if not (line.prompt if line.messages is None else line.messages):
        raise refuse("the prompt is empty")
    if not line.answer:
        raise refuse("the answer is empty")
    return line


def _render(
    chats: Sequence[tuple[int, tuple[Message, ...]]],
    template: ChatTemplate | None,
    path: Path,
    limit_s: float,
) -> tuple[str, ...]:
    """Return the text of each chat, up to where the answer begins."""
    if template is None:
        raise refusal_of_line(
            "'messages' need a chat template, and the model's folder has none",
            path,
            chats[0][0],
            "give 'prompt', or add chat_template.jinja to the model's folder",
        )
    request = {
        "source": template.source,
        "tokens": template.tokens,
        "chats": [messages for _, messages in chats],
        "timeout_s": limit_s,
    }
    ending = run_child(
        _COMMAND,
        msgspec.json.encode(request),
        timeout_s=limit_s,
        memory_bytes=_TEMPLATE_BYTES,
    )
    if ending.answer is None:
        raise BuildError(
            f"the chat template does not end: the process {ending.because}",
            found_in=template.found_in,
            remedy="check the template's loops; a template writes one chat in milliseconds",
        )
    rendered = decode_json(ending.answer, Rendered)
    if rendered.problem:
        place = f", for line {chats[rendered.failed][0]} of {path}" if rendered.failed >= 0 else ""
        raise BuildError(
            f"the chat template fails: {printable(rendered.problem)}",
            found_in=f"{template.found_in}{place}",
            remedy="check the template, and the roles of the messages",
        )
    return rendered.texts

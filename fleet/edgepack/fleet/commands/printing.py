"""Output of the fleet's commands: documents as JSON or for people, and the log of `serve`."""

import logging
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click
import msgspec
from rich.console import Console, RenderableType

from edgepack.json_text import json_text
from edgepack.text import printable

T = TypeVar("T")


_WHOLE_LINES = 4000


def print_result(value: T, as_json: bool, picture: Callable[[T], RenderableType]) -> None:
    """Print a result as JSON or as text.

    Args:
        value: A document, or a tuple of documents.
        as_json: Which of the two.
        picture: Converts the document to text without terminal control sequences.
    """
    if as_json:
        click.echo(json_text(value))
    else:
        shown = picture(printable_document(value))
        if isinstance(shown, str):
            click.echo(shown)
        else:
            console().print(shown)


def printable_document(value: T) -> T:
    """Return a struct, or a tuple or dictionary of structs, with all texts passed through
    `printable`.
    """
    shown: T = _printable(value)
    return shown


def _printable(value: Any) -> Any:
    match value:
        case str():
            return printable(value)
        case tuple():
            return tuple(_printable(item) for item in value)
        case dict():
            return {_printable(key): _printable(item) for key, item in value.items()}
        case msgspec.Struct():
            texts = {name: _printable(getattr(value, name)) for name in value.__struct_fields__}
            return msgspec.structs.replace(value, **texts)
    return value


def console(*, stderr: bool = False) -> Console:
    """Return a console for stdout or stderr, terminal or not."""
    # Without a terminal nothing is folded: the lines go to a file or a pipe. What documents hold
    # is not markup.
    width = None if (sys.stderr if stderr else sys.stdout).isatty() else _WHOLE_LINES
    return Console(highlight=False, markup=False, emoji=False, width=width, stderr=stderr)


class LogFormatter(logging.Formatter):
    """Formatter that writes each record on a single line; tracebacks follow."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (logging's own name)
        return printable(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802 (logging's own name)
        return "\n".join(printable(line) for line in super().formatException(ei).split("\n"))

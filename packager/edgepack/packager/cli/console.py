"""Where commands with rich tables print. `edgepack build` does without rich: it starts faster."""

from rich.console import Console

_PIPE_WIDTH = 1000
"""Columns; wider than any table, whose cells would lose their ends otherwise."""


def open_console() -> Console:
    """Where the output is no terminal, lines are as long as they need to be."""
    console = Console(highlight=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = _PIPE_WIDTH
    return console

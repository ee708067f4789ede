"""Writes `docs/reference/commands.md` from the programs' own `--help`; `--check` only compares.

python docs/reference.py [--check]
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from edgepack.agent.cli import cli as agent
from edgepack.cli import cli as host

PAGE = Path(__file__).parent / "reference" / "commands.md"
HEAD = """# Commands

Every command and option, made from `--help` by `make docs`. Every command that reports something
takes `--json`. Exit codes: 0 done, 1 refused or failed, 2 wrong usage ([more](exit-codes.md)).
"""


def sections(command: click.Command, name: str) -> Iterator[str]:
    """The help of a command and of all below it, as Markdown sections."""
    context = click.Context(command, info_name=name, terminal_width=90, max_content_width=90)
    yield f"\n## `{name}`\n\n```text\n{command.get_help(context)}\n```\n"
    if isinstance(command, click.Group):
        for child in command.list_commands(context):
            found = command.get_command(context, child)
            if found is not None:
                yield from sections(found, f"{name} {child}")


def main() -> None:
    """Writes the page, or exits with 1 when `--check` finds that it is out of step."""
    text = HEAD + "".join([*sections(host, "edgepack"), *sections(agent, "edgepack-agent")])
    if "--check" not in sys.argv:
        PAGE.write_text(text)
    elif not PAGE.exists() or PAGE.read_text() != text:
        sys.exit("docs/reference/commands.md is out of step with --help: run 'make docs'")


if __name__ == "__main__":
    main()

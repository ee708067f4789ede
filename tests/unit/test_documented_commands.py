"""Every command line in README and docs is one that the programs accept."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from edgepack.agent.cli import cli as agent
from edgepack.cli import cli as host

ROOT = Path(__file__).parents[2]
PROGRAMS = {"edgepack": host, "edgepack-agent": agent}


def _command_lines() -> Iterator[tuple[str, str]]:
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        if page.name == "commands.md":
            continue
        for block in _code_blocks(page.read_text()):
            for line in block.replace("\\\n", " ").splitlines():
                if match := re.match(r"\s*(?:\$ )?((?:edgepack|edgepack-agent) .+)$", line):
                    yield page.name, match.group(1).split(" #")[0].strip()


def _code_blocks(text: str) -> Iterator[str]:
    """What stands between fences or is indented by four."""
    for number, part in enumerate(re.split(r"^```.*$", text, flags=re.M)):
        if number % 2:
            yield part
        else:
            yield "".join(re.findall(r"^ {4}.*\n", part, flags=re.M))


@pytest.mark.parametrize(("page", "line"), sorted(set(_command_lines())))
def test_a_documented_command_line_is_accepted(page: str, line: str, tmp_path: Path) -> None:
    program, *words = shlex.split(line)
    command: click.Command = PROGRAMS[program]
    context = click.Context(command, info_name=program)
    while isinstance(command, click.Group):
        if command.invoke_without_command and (not words or words[0].startswith("-")):
            break  # the group does something by itself
        assert words, f"{page}: '{line}' ends before the command"
        found = command.get_command(context, words[0])
        assert found is not None, f"{page}: '{line}': no command {words[0]!r}"
        command, words = found, words[1:]
        context = click.Context(command, info_name=command.name, parent=context)
    try:
        command.make_parser(context).parse_args(list(words))
    except click.UsageError as error:
        pytest.fail(f"{page}: '{line}': {error.message}")


def test_the_pages_hold_command_lines_at_all() -> None:
    assert len(list(_command_lines())) > 5

"""Page of `edgepack profiles show`, for people."""

import shlex
import shutil
import textwrap
from collections.abc import Iterable, Iterator

import click

from edgepack.packager.profiles.description import describe_gates, describe_recipe, describe_target
from edgepack.packager.profiles.schema import Profile
from edgepack.text import printable, printable_lines

_WIDEST = 100
"""Columns; longer lines are hard to read."""


def print_profile(profile: Profile, given: str) -> None:
    """Print a profile, as wide as the terminal.

    Args:
        profile: The profile.
        given: Name as given.
    """
    about = profile.about
    title = click.style(printable(profile.name), bold=True)
    click.echo(f"{title} ({printable(about.precision)})")
    click.echo(printable_lines(about.summary.splitlines()))
    for heading, facts in (
        ("", describe_target(profile)),
        ("What is done to a model, in this order", describe_recipe(profile)),
        ("What it must hold to be published", describe_gates(profile.gates)),
    ):
        click.echo(f"\n{click.style(heading, bold=True)}" if heading else "")
        click.echo(printable_lines(_laid_out(facts)))
    click.echo(f"\nEvery setting by its key: edgepack profiles show {shlex.quote(given)} --json")


def _laid_out(facts: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield lines in two columns; a label that repeats is said once."""
    rows = list(facts)
    width = min(shutil.get_terminal_size().columns, _WIDEST)
    column = 2 + max(len(label) for label, _ in rows) + 2
    said = ""
    for label, text in rows:
        first = f"  {label if label != said else ''}".ljust(column)
        yield from textwrap.wrap(
            text,
            width,
            initial_indent=first,
            subsequent_indent=" " * column,
            break_long_words=False,
            break_on_hyphens=False,
        )
        said = label

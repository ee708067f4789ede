"""The command `edgepack profiles`.

Page of `edgepack profiles show`, for people.
"""

import shlex
import shutil
import textwrap
from collections.abc import Iterable, Iterator

import click
import msgspec

from edgepack.json_text import json_text
from edgepack.packager.cli.option_values import json_option
from edgepack.packager.cli.text_table import plain, print_table
from edgepack.packager.profiles.description import describe_gates, describe_recipe, describe_target
from edgepack.packager.profiles.reading import list_profiles, load_profile
from edgepack.packager.profiles.schema import Profile
from edgepack.packager.wording import short_provider
from edgepack.text import printable, printable_lines


@click.group()
def profiles() -> None:
    """List and show hardware profiles.

    \b
    Example:
      edgepack profiles list
      edgepack profiles show qnn-htp
    """


@profiles.command("list")
@json_option
def list_command(as_json: bool) -> None:
    """List the profiles that are shipped.

    \b
    Example:
      edgepack profiles list
    """
    found = tuple(load_profile(name) for name in list_profiles())
    if as_json:
        told = [
            {
                "name": profile.name,
                "summary": profile.about.summary,
                "precision": profile.about.precision,
                "provider": profile.device.provider,
                "device": profile.device.type,
            }
            for profile in found
        ]
        click.echo(json_text(told))
        return
    rows = [
        plain(
            profile.name,
            short_provider(profile.device.provider, profile.device.type),
            profile.about.precision,
            profile.about.summary,
        )
        for profile in found
    ]
    print_table(("profile", "provider", "precision", "what it is for"), rows, right=())


@profiles.command()
@click.argument("name")
@json_option
def show(name: str, as_json: bool) -> None:
    """Show a profile, including inherited settings: NAME, or the path of a .toml file.

    \b
    Example:
      edgepack profiles show qnn-htp
      edgepack profiles show ./mine.toml --json
    """
    profile = load_profile(name)
    if as_json:
        click.echo(json_text(msgspec.to_builtins(profile)))
        return
    from edgepack.packager.cli.profiles import print_profile

    print_profile(profile, name)


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

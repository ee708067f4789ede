"""How the demo speaks to a person."""

import shlex
import textwrap
from typing import Any

import click


def heading(text: str) -> None:
    """A step begins."""
    click.secho(f"\n{text}", bold=True)


def say(text: str) -> None:
    """A sentence or two, wrapped."""
    click.echo(textwrap.fill(text, width=92))


def show_command(words: tuple[str, ...]) -> None:
    """The command line that runs now, as a person would type it."""
    click.secho(f"\n$ edgepack {shlex.join(words)}", fg="cyan")


def show_choices(devices: list[dict[str, Any]]) -> None:
    """Why each device runs what it runs."""
    for device in devices:
        for model in device["models"]:
            mark = click.style("  (fallback)", fg="yellow") if model["is_fallback"] else ""
            click.echo(f"{device['device']}: {model['variant']} on {model['provider']}{mark}")
            click.echo(f"    because {model['choice_because']}")


def show_applications(counts: dict[str, dict[str, Any]]) -> None:
    """What the applications on the devices saw, from their first inference to their last."""
    click.echo("\nThe applications, from their first inference to their last:")
    for device, count in counts.items():
        click.echo(
            f"  {device}: {count['asked']} inferences, {count['failed']} failed, "
            f"{count['right'] / count['asked']:.1%} of the lines read the right way up, "
            f"by version {' then '.join(count['versions'])}"
        )

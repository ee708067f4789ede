"""The command `edgepack profiles`."""

import click
import msgspec

from edgepack.json_text import json_text
from edgepack.packager.cli.option_values import json_option
from edgepack.packager.cli.text_table import plain, print_table
from edgepack.packager.profiles.reading import list_profiles, load_profile
from edgepack.packager.wording import short_provider


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
    from edgepack.packager.cli.profile_page import print_profile

    print_profile(profile, name)

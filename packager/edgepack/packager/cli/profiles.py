"""The command `edgepack profiles`."""

import click
import msgspec

from edgepack.json_text import json_text
from edgepack.packager.profiles.reading import (
    list_profiles,
    load_profile,
)

_HELP = {"help_option_names": ["-h", "--help"]}
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group(context_settings=_HELP)
def profiles() -> None:
    """List and show hardware profiles.

    \b
    Example:
      edgepack profiles list
      edgepack profiles show qnn-htp
    """


@profiles.command("list", context_settings=_HELP)
@_json
def list_command(as_json: bool) -> None:
    """List the profiles that are shipped.

    \b
    Example:
      edgepack profiles list
    """
    found = tuple(load_profile(name) for name in list_profiles())
    if as_json:
        _print_json(
            [
                {
                    "name": profile.name,
                    "summary": profile.about.summary,
                    "precision": profile.about.precision,
                    "provider": profile.device.provider,
                    "device": profile.device.type,
                }
                for profile in found
            ]
        )
        return
    from edgepack.packager.cli.profile_table import print_profiles  # rich slows `build` down

    print_profiles(found)


@profiles.command(context_settings=_HELP)
@click.argument("name")
@_json
def show(name: str, as_json: bool) -> None:
    """Show a profile, what it inherits included: NAME, or the path of a .toml file.

    \b
    Example:
      edgepack profiles show qnn-htp
      edgepack profiles show ./mine.toml --json
    """
    profile = load_profile(name)
    if as_json:
        _print_json(msgspec.to_builtins(profile))
        return
    from edgepack.packager.cli.profile_page import print_profile

    print_profile(profile, name)


def _print_json(value: object) -> None:
    click.echo(json_text(value))

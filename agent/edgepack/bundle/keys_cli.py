"""The commands around signing keys: `keys generate` and `keys show`."""

from pathlib import Path

import click

from edgepack.bundle.keys import (
    CURVES,
    DEFAULT_CURVE,
    curve_name,
    generate_key,
    key_id,
    load_public_key,
    passphrase,
    write_key_pair,
)
from edgepack.json_text import json_text

_HELP = {"help_option_names": ["-h", "--help"]}


@click.group(context_settings=_HELP)
def keys() -> None:
    """Generate and show signing keys.

    \b
    Example:
      edgepack keys generate -o release
      edgepack keys show release.pub
    """


@keys.command(context_settings=_HELP)
@click.option(
    "-o",
    "--output",
    "prefix",
    type=click.Path(path_type=Path),
    default=Path("release"),
    show_default=True,
    help="Writes PREFIX.key and PREFIX.pub.",
)
@click.option("--curve", type=click.Choice(CURVES), default=DEFAULT_CURVE, show_default=True)
def generate(prefix: Path, curve: str) -> None:
    """Make a new signing key.

    EDGEPACK_KEY_PASSPHRASE in the environment encrypts the private key.

    \b
    Example:
      edgepack keys generate -o release
    """
    pair = generate_key(curve, passphrase=passphrase())
    private, public = write_key_pair(pair, prefix)
    secrecy = "encrypted" if passphrase() else "not encrypted"
    click.echo(f"private key: {private} ({secrecy}; keep it where bundles are built)")
    click.echo(f"public key:  {public} (goes to every device)")
    click.echo(f"key id:      {pair.id}")


@keys.command(context_settings=_HELP)
@click.argument("key", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(key: Path, as_json: bool) -> None:
    """Show the curve and the id of a public key; signatures name their key by that id.

    \b
    Example:
      edgepack keys show release.pub
    """
    public = load_public_key(key)
    if as_json:
        click.echo(json_text({"curve": curve_name(public), "key_id": key_id(public)}))
        return
    click.echo(f"curve:  {curve_name(public)}")
    click.echo(f"key id: {key_id(public)}")

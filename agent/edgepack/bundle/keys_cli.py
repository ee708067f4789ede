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
    refuse_existing,
    write_key_pair,
    write_token_key,
)
from edgepack.bundle.pkcs11_uri import is_uri, parse_uri
from edgepack.bundle.signing_keys import load_signing_key
from edgepack.json_text import json_text
from edgepack.key_place import check_key_place, into_work_tree_option

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
@click.option(
    "--token",
    metavar="URI",
    help="Make it inside a token (PKCS #11), where it stays; PREFIX.key then only names it.",
)
@into_work_tree_option
def generate(prefix: Path, curve: str, token: str | None) -> None:
    """Make a new signing key.

    EDGEPACK_KEY_PASSPHRASE in the environment encrypts the private key.

    \b
    Example:
      edgepack keys generate -o release
      edgepack keys generate --token 'pkcs11:token=release;object=signing' -o release
    """
    if token is not None:
        _generate_in_token(token, prefix, curve)
        return
    check_key_place(prefix)
    pair = generate_key(curve, passphrase=passphrase())
    private, public = write_key_pair(pair, prefix)
    secrecy = "encrypted" if passphrase() else "not encrypted"
    click.echo(f"private key: {private} ({secrecy}; keep it where bundles are built)")
    click.echo(f"public key:  {public} (goes to every device)")
    click.echo(f"key id:      {pair.id}")


@keys.command(context_settings=_HELP)
@click.argument("key")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(key: str, as_json: bool) -> None:
    """Show the curve and the id of a public key; signatures name their key by that id.

    KEY is a public key file, or the PKCS #11 URI of a key in a token.

    \b
    Example:
      edgepack keys show release.pub
      edgepack keys show 'pkcs11:token=release;object=signing'
    """
    public = load_signing_key(key).public_key() if is_uri(key) else load_public_key(Path(key))
    if as_json:
        click.echo(json_text({"curve": curve_name(public), "key_id": key_id(public)}))
        return
    click.echo(f"curve:  {curve_name(public)}")
    click.echo(f"key id: {key_id(public)}")


def _generate_in_token(token: str, prefix: Path, curve: str) -> None:
    from edgepack.bundle.pkcs11_keys import generate_token_key

    reference, public = Path(f"{prefix}.key"), Path(f"{prefix}.pub")
    for path in (reference, public):
        refuse_existing(path)
    key = generate_token_key(parse_uri(token), curve).public_key()
    write_token_key(token, key, prefix)
    click.echo(f"private key: in the token, which it never leaves ({reference} names it)")
    click.echo(f"public key:  {public} (goes to every device)")
    click.echo(f"key id:      {key_id(key)}")

"""The commands `push` and `pull`."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from edgepack.bundle.forms import locate
from edgepack.bundle.keys import load_public_key
from edgepack.command_options import json_option, keys_option
from edgepack.json_text import json_text
from edgepack.registry.bundles import pull as pull_bundle
from edgepack.registry.bundles import push as push_bundle
from edgepack.registry.way import Progress, Way
from edgepack.text import printable

_HELP = {"help_option_names": ["-h", "--help"]}
_ca_file = click.option(
    "--ca-file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="PEM of the authorities to trust, instead of the system's.",
)
_http_unsafe = click.option(
    "--http-unsafe",
    is_flag=True,
    help="Use plain http: anybody on the network path can read and change data and passwords.",
)


@click.command(context_settings=_HELP)
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("target", metavar="oci://HOST/REPOSITORY:TAG")
@_ca_file
@_http_unsafe
@json_option
def push(bundle: Path, target: str, ca_file: Path | None, http_unsafe: bool, as_json: bool) -> None:
    """Send BUNDLE (a folder or an archive) to an OCI registry.

    Files that the registry has already are not sent again. The password is that of `docker login`,
    or in EDGEPACK_REGISTRY_USER and EDGEPACK_REGISTRY_PASSWORD for the registry that
    EDGEPACK_REGISTRY_HOST names.

    \b
    Example:
      edgepack push digits-1.2.0.edgepack oci://registry.example/models/digits:1.2.0
    """
    way = Way(ca_file=str(ca_file or ""), http_unsafe=http_unsafe)
    with _bar("push") as progress:
        pushed = push_bundle(locate(bundle), target, way, progress)
    if as_json:
        click.echo(json_text(pushed))
        return
    click.echo(f"{pushed.reference}: {pushed.sent_bytes} of {pushed.size_bytes} bytes were sent")
    click.echo(f"root digest: {pushed.digest}")


@click.command(context_settings=_HELP)
@click.argument("source", metavar="oci://…|https://…")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    help="New folder, or new archive if the name ends in .edgepack; must not exist.",
)
@keys_option("Public key; only the manifest is fetched unless a given key signed the bundle.")
@_ca_file
@_http_unsafe
@json_option
def pull(
    source: str,
    output: Path,
    key_paths: tuple[Path, ...],
    ca_file: Path | None,
    http_unsafe: bool,
    as_json: bool,
) -> None:
    """Take a bundle from an OCI registry, or an archive from a web server: all files or nothing.

    \b
    Example:
      edgepack pull oci://registry.example/models/digits:1.2.0 -o digits-1.2.0.edgepack \\
          --key release.pub
      edgepack pull https://files.example/digits-1.2.0.edgepack -o digits-1.2.0 --key release.pub
    """
    keys = [load_public_key(path) for path in key_paths]
    way = Way(ca_file=str(ca_file or ""), http_unsafe=http_unsafe)
    with _bar("pull") as progress:
        pulled = pull_bundle(source, output, keys, way, progress)
    if as_json:
        click.echo(json_text(pulled))
        return
    state = "verified" if pulled.verified else "not verified"
    title = printable(f"{pulled.name} {pulled.version}, release {pulled.release}")
    click.echo(f"{title}: {output} ({state})")
    click.echo(f"from:        {pulled.reference}")
    click.echo(f"root digest: {pulled.digest}")
    if not pulled.verified:
        click.echo("not verified: give --key to check the signature", err=True)


@contextmanager
def _bar(label: str) -> Iterator[Progress]:
    """Yield a progress bar on a terminal, else a callback without output."""
    if not sys.stderr.isatty():
        yield lambda _done, _all: None
        return
    with click.progressbar(length=1, label=label, file=sys.stderr) as bar:

        def progress(done: int, total: int) -> None:
            bar.length = max(total, done, 1)
            bar.update(done - bar.pos)

        yield progress

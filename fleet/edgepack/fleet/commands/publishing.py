"""Commands `edgepack publish`, `withdraw` and `export`: releases that devices may install."""

from pathlib import Path

import click

from edgepack.command_options import folder_option
from edgepack.fleet.client.fleet_client import FleetClient
from edgepack.fleet.client.publishing import METADATA_FOLDER
from edgepack.fleet.commands.completion import release_names
from edgepack.fleet.commands.options import asks
from edgepack.fleet.commands.printing import print_result
from edgepack.fleet.documents.releases import PublishedMetadata, ReleaseView, full_title
from edgepack.registry.fetched import fetched, is_elsewhere
from edgepack.text import counted

keys_option = click.option(
    "--key",
    "keys",
    multiple=True,
    metavar="FILE|URI",
    help="The publisher's private key, or pkcs11:… for one in a token; repeatable. It stays here.",
)


@click.command()
@click.argument("bundle")
@keys_option
@asks
def publish(bundle: str, keys: tuple[str, ...], data: Path, url: str, as_json: bool) -> None:
    """Upload BUNDLE to the fleet and list BUNDLE as a release: devices install listed releases
    only.

    BUNDLE is a folder, an archive, or a URL: oci://… or https://… Controllers without a shared
    folder fetch BUNDLE from the URL, too.

    A fleet that holds the publisher's key signs by itself. Else the publisher signs, here, with
    --key; where several keys must sign, each of their holders gives the same command.

    \b
    Example:
      edgepack publish model-1.2.0.edgepack
      edgepack publish model-1.2.0.edgepack --key team.key
      edgepack publish oci://registry.example/models/model:1.2.0
    """
    client = FleetClient(url, data=data)
    with fetched(bundle) as found:
        if keys:
            print_result(client.sign_release(found.path, keys, found.source), as_json, _signed)
        else:
            print_result(client.publish(found.path, found.source), as_json, _listed)
        if is_elsewhere(bundle) and not found.source:
            click.echo(
                "note: the fleet does not keep this URL, which may hold a secret: controllers that "
                "share no folder cannot fetch the release",
                err=True,
            )


@click.command()
@click.argument("release", shell_complete=release_names)
@keys_option
@asks
def withdraw(release: str, keys: tuple[str, ...], data: Path, url: str, as_json: bool) -> None:
    """Withdraw RELEASE: devices that do not run RELEASE yet reject RELEASE. Devices that run
    RELEASE continue.

    
    Example:
      edgepack withdraw model@1.2.0
      edgepack withdraw model@1.2.0 --key team.key
    """
    found = FleetClient(url, data=data).withdraw(release, keys)
    if isinstance(found, PublishedMetadata):
        print_result(found, as_json, _signed)
    else:
        print_result(found, as_json, lambda shown: f"{full_title(shown.bundle)} is withdrawn")


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "--with-metadata",
    is_flag=True,
    help="Also write the fleet's metadata, needed by a device without a network.",
)
@folder_option("Folder to write, on a stick.")
@asks
def export(
    bundle: Path, with_metadata: bool, output: Path, data: Path, url: str, as_json: bool
) -> None:
    """Write BUNDLE and the fleet's metadata for devices without a network.

    On the device: edgepack-agent install FOLDER/NAME-VERSION.edgepack

    \b
    Example:
      edgepack export model-1.2.0.edgepack --with-metadata -o /media/stick
    """
    if not with_metadata:
        raise click.UsageError("without --with-metadata there is nothing to write but a copy")
    archive = FleetClient(url, data=data).export(bundle, output)
    document = {"archive": str(archive), "metadata": str(output / METADATA_FOLDER)}
    print_result(document, as_json, lambda shown: f"edgepack-agent install {shown['archive']}")


def _listed(shown: ReleaseView) -> str:
    title = full_title(shown.bundle)
    if shown.is_listed:
        return f"{title} is released"
    return f"{title} is held, and not released: its publisher must sign it, with --key"


def _signed(shown: PublishedMetadata) -> str:
    role = f"'{shown.role}', version {shown.version}"
    if shown.is_accepted:
        return f"{role} holds now"
    lacking = shown.threshold - shown.signatures
    return f"{role} waits for {counted(lacking, 'signature')} of another key"

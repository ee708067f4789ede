"""The command `edgepack agent-release`."""

import tempfile
from pathlib import Path

import click
import msgspec

from edgepack.bundle.agent_release import AGENT_RELEASE
from edgepack.errors import BuildError
from edgepack.json_text import json_text
from edgepack.packager.bundling.agent_environments import write_environments
from edgepack.packager.bundling.output import ARCHIVE_SUFFIX
from edgepack.packager.cli.option_values import json_option
from edgepack.packager.cli.progress_bar import show_progress
from edgepack.packager.graph.proof_model import write_proof_model
from edgepack.packager.pipeline.build import build_bundle
from edgepack.packager.pipeline.request import derive_request

_path = click.Path(path_type=Path)


@click.command("agent-release")
@click.argument("packages", type=_path, nargs=-1, required=True, metavar="PACKAGE.deb…")
@click.option(
    "--key",
    required=True,
    metavar="PATH|URI",
    help="Private key that signs: a file (PEM), or pkcs11:token=…;object=…",
)
@click.option("--version", default="", help="Version of the release; default: edgepack's own.")
@click.option("-o", "--output", type=_path, help="The file; default: edgepack-agent-VERSION.")
@json_option
def agent_release(
    packages: tuple[Path, ...], key: str, version: str, output: Path | None, as_json: bool
) -> None:
    """Make a release of the device agent from its Debian packages.

    The release is a bundle named edgepack-agent: rollouts, waves, gates and rollbacks work as for
    models. The bundle has the environment of each package, and a tiny model as proof. A device
    takes the environment of its architecture and Python.

    \b
    Example:
      make packages
      edgepack agent-release dist/*.deb --key release.key
      edgepack rollout start edgepack-agent-0.2.0.edgepack --group cameras
    """
    with tempfile.TemporaryDirectory(prefix="edgepack-") as work, show_progress() as progress:
        folder = Path(work)
        try:
            found = write_environments(packages, folder)
            model = write_proof_model(folder / "proof.onnx")
        except OSError as error:
            raise BuildError(
                f"cannot unpack: {error.strerror}", found_in=str(error.filename or work)
            ) from error
        version = version or found.version
        request = derive_request(
            model,
            {
                "name": AGENT_RELEASE,
                "version": version,
                "profiles": ("fp32",),
                "calibration": "random:16",
                "key": key,
                "output": output or Path(f"{AGENT_RELEASE}-{version}{ARCHIVE_SUFFIX}"),
            },
        )
        result = build_bundle(msgspec.structs.replace(request, firmware=found.shipped), progress)
    kinds = {one.firmware.compatible: one.firmware.version for one in found.shipped}
    if as_json:
        document = {"output": result.output, "digest": result.digest, "environments": kinds}
        click.echo(json_text(document))
        return
    for kind, of in kinds.items():
        click.echo(f"{kind:16} {of}")
    click.echo(f"bundle  {result.output}")
    click.echo(f"next    edgepack rollout start {result.output} --group GROUP")

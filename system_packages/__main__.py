"""Builds the packages of the agent: `python -m system_packages`.

One `.deb` of the agent and one of its provider for each architecture and minor version of Python,
and an image for containers with both architectures. The same sources give the same bytes.
"""

import concurrent.futures
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import click

from system_packages.contents import Order, build
from system_packages.debian import debian_version
from system_packages.environment import REPOSITORY, PackagingError, build_wheel
from system_packages.image import write_image
from system_packages.targets import MACHINES, RELEASES

_MB = 1_000_000


def source_epoch() -> int:
    """Return the time of the sources: `SOURCE_DATE_EPOCH`, or the last commit's, seconds.

    Raises:
        PackagingError: Neither is known.
    """
    if text := os.environ.get("SOURCE_DATE_EPOCH"):
        if text.isdecimal():
            return int(text)
        raise PackagingError(f"SOURCE_DATE_EPOCH={text!a} is not a number of seconds")
    words = ["git", "-C", str(REPOSITORY), "log", "-1", "--format=%ct"]
    try:
        return int(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
    except (OSError, subprocess.CalledProcessError) as error:
        raise PackagingError("the sources have no time: set SOURCE_DATE_EPOCH") from error


@click.command()
@click.option("--output", type=click.Path(path_type=Path), default="dist", show_default=True)
@click.option("--arch", "architectures", multiple=True, type=click.Choice(list(MACHINES)))
@click.option(
    "--python",
    "pythons",
    multiple=True,
    type=click.Choice(list(RELEASES)),
    help="Minor version of Python on the device; each must be installed here.",
)
@click.option("--image/--no-image", default=True, help="Build an image too; needs mmdebstrap.")
@click.option(
    "--cache",
    type=click.Path(path_type=Path),
    help="Keep Debian's files of the image in this folder; kept files are not updated.",
)
@click.option("--maintainer", default="edgepack <root@localhost>", show_default=True)
@click.option(
    "--preset",
    type=click.IntRange(0, 9),
    default=6,
    show_default=True,
    help="Effort of the compression.",
)
def main(
    output: Path,
    architectures: tuple[str, ...],
    pythons: tuple[str, ...],
    image: bool,
    cache: Path | None,
    maintainer: str,
    preset: int,
) -> None:
    """Build packages of the agent, by default for all architectures and this Python."""
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    output.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(dir=output) as scratch:
            folder, epoch = Path(scratch), source_epoch()
            wheel = build_wheel(folder)
            orders = [
                Order(
                    wheel=wheel,
                    python=python,
                    architecture=one,
                    output=output,
                    base=(cache or folder) / f"{python}-{one}.tar" if image else None,
                    layers=folder,
                    epoch=epoch,
                    maintainer=maintainer,
                    preset=preset,
                )
                for python in pythons or (here,)
                for one in architectures or MACHINES
            ]
            with concurrent.futures.ProcessPoolExecutor(os.cpu_count()) as pool:
                done = dict(zip(orders, pool.map(build, orders), strict=True))
            for built in done.values():
                for path, size in built.packages.items():
                    show(path, f", installed {size / _MB:.1f} MB")
            for python in dict.fromkeys(order.python for order in orders) if image else ():
                layers = {
                    order.architecture: built.layers
                    for order, built in done.items()
                    if order.python == python
                }
                version = debian_version(wheel.name.split("-")[1], python)
                path = output / f"edgepack-agent_{version}_oci.tar"
                write_image(layers, path, version=version.replace("+", "-"), epoch=epoch)
                show(path, f", image of {', '.join(layers)}")
    except PackagingError as error:
        raise click.ClickException(str(error)) from error


def show(path: Path, more: str) -> None:
    """Print a line with the size of a file."""
    click.echo(f"{path.name:48} {path.stat().st_size / _MB:6.1f} MB{more}")


if __name__ == "__main__":
    main()

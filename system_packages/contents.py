"""Contents of the packages: the agent with unit, users and folders, and its provider."""

import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

from edgepack.agent.service.installation import FILES
from system_packages.debian import Package, debian_version, installed_bytes, write_deb
from system_packages.environment import (
    REPOSITORY,
    compile_modules,
    drop_unused,
    install_wheels,
    installed,
    move_distributions,
    needed_glibc,
    required_names,
    write_programs,
)
from system_packages.image import Layer, compress_base, make_base, write_agent_layer

_SCRIPTS = Path(__file__).with_name("scripts")
_SERVICE = REPOSITORY / "agent/edgepack/agent/service"
_COPYRIGHT = """edgepack: Apache-2.0, see /usr/share/common-licenses/Apache-2.0.

The package contains these distributions from the Python package index. The texts of their licenses
lie next to their modules, in NAME.dist-info.

"""


class Order(NamedTuple):
    """What to build.

    Attributes:
        wheel: Of this repository.
        python: Minor version of Python.
        architecture: Debian's name.
        output: Folder that receives the packages.
        base: Archive of Debian's files for the image, made if missing; None for no image.
        layers: Folder that receives the layers of the image.
        epoch: Time of each file, seconds since 1970.
        maintainer: Name and address.
        preset: Effort of compressions, 0 to 9.
    """

    wheel: Path
    python: str
    architecture: str
    output: Path
    base: Path | None
    layers: Path
    epoch: int
    maintainer: str
    preset: int


class Built(NamedTuple):
    """Written packages, and the layers of an image."""

    packages: dict[Path, int]
    layers: tuple[Layer, ...]


def build(order: Order) -> Built:
    """Build the packages of an architecture and a version of Python, and layers of an image.

    Returns:
        The files, each with the size of its content in bytes, and the layers.

    Raises:
        PackagingError: A wheel is missing, the version of Python, or Debian's files.
    """
    version = debian_version(order.wheel.name.split("-")[1], order.python)
    names = (version, order.python, order.architecture)
    with tempfile.TemporaryDirectory() as scratch:
        roots = lay_out(order.wheel, order.python, order.architecture, Path(scratch))
        packages = (_agent_package(roots[0], *names), _provider_package(roots[1], *names))
        written = {}
        for package, root in zip(packages, roots, strict=True):
            path = write_deb(
                package,
                root,
                order.output,
                epoch=order.epoch,
                maintainer=order.maintainer,
                preset=order.preset,
            )
            written[path] = installed_bytes(root)
        if order.base is None:
            return Built(written, ())
        if not order.base.exists():
            make_base(order.python, order.architecture, order.base, epoch=order.epoch)
        base, agent = (
            order.layers / f"{order.python}-{order.architecture}.{name}"
            for name in ("base", "agent")
        )
        layers = (
            compress_base(order.base, base, preset=order.preset),
            write_agent_layer(roots, order.base, agent, epoch=order.epoch, preset=order.preset),
        )
        return Built(written, layers)


def lay_out(wheel: Path, python: str, architecture: str, folder: Path) -> tuple[Path, Path]:
    """Lay out the files of the agent and of its provider.

    Args:
        wheel: Of this repository.
        python: Minor version of Python.
        architecture: Debian's name.
        folder: Receives the files.

    Returns:
        Two folders, each with the files of a package as they are installed below `/`.
    """
    tree, agent, provider = (folder / name for name in ("tree", "agent", "provider"))
    install_wheels(wheel, python, architecture, tree)
    drop_unused(tree)
    base = required_names(tree, python)
    others = installed(tree).keys() - base
    for name, root, chosen in (
        ("edgepack-agent", agent, base),
        ("edgepack-agent-cpu", provider, others),
    ):
        modules = move_distributions(tree, chosen, root, python)
        _write_copyright(modules, root / "usr/share/doc" / name)
        if root == agent:
            write_programs(root, python)
            for source, place in FILES.items():
                target = root / "usr/lib" / place
                target.parent.mkdir(parents=True)
                shutil.copyfile(_SERVICE / source, target)
        compile_modules(root, python)
    return agent, provider


def _write_copyright(modules: Path, folder: Path) -> None:
    folder.mkdir(parents=True)
    lines = []
    for one in installed(modules).values():
        fields = {name: one.metadata[name] for name in one.metadata}
        text = fields.get("License-Expression") or fields.get("License") or "see its folder"
        lines.append(f"{one.name} {one.version}: {text.splitlines()[0]}\n")
    (folder / "copyright").write_text(_COPYRIGHT + "".join(sorted(lines)))


def _agent_package(root: Path, version: str, python: str, architecture: str) -> Package:
    modules = next(root.glob("usr/lib/edgepack/lib/*/site-packages"))
    return Package(
        name="edgepack-agent",
        version=version,
        architecture=architecture,
        depends=(
            f"libc6 (>= 2.{needed_glibc(modules)})",
            "libstdc++6",
            f"python{python}",
            "systemd | systemd-standalone-sysusers | systemd-sysusers",
        ),
        recommends=("ca-certificates", "edgepack-agent-cpu"),
        summary="device agent for ONNX models of an edgepack fleet",
        description=(
            "Receives signed releases of models, proves them on the hardware of the device,",
            "serves them to applications, watches them and rolls them back.",
        ),
        scripts={path.name: path.read_text() for path in sorted(_SCRIPTS.iterdir())},
    )


def _provider_package(root: Path, version: str, python: str, architecture: str) -> Package:
    modules = next(root.glob("usr/lib/edgepack/lib/*/site-packages"))
    return Package(
        name="edgepack-agent-cpu",
        version=version,
        architecture=architecture,
        depends=(f"edgepack-agent (= {version})", f"libc6 (>= 2.{needed_glibc(modules)})"),
        summary="ONNX Runtime for the agent of edgepack",
        description=("The execution provider for processors, in the environment of the agent.",),
    )

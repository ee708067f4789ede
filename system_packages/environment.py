"""Private Python environments for packages, made from wheels alone; nothing of them runs here."""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from system_packages.archive import walk
from system_packages.targets import RELEASES, REQUIREMENTS, platform_tags

REPOSITORY = Path(__file__).parents[1]
HOME = Path("usr/lib/edgepack")
"""Place of the environment below `/`."""
_DROPPED = {
    "bin",
    "edgepack/cli.py",
    "edgepack/fleet",
    "edgepack/packager",
    "edgepack/profiles",
    "numpy/_core/include",
    "numpy/_core/lib",
    "numpy/distutils",
    "numpy/f2py",
    "numpy/polynomial",
    "numpy/testing",
    "onnxruntime/backend",
    "onnxruntime/datasets",
    "onnxruntime/quantization",
    "onnxruntime/tools",
    "onnxruntime/transformers",
}
"""Parts of distributions that a device never imports."""
_DROPPED_FOLDERS = {"__pycache__", "test_data", "tests"}
_DROPPED_SUFFIXES = {".a", ".c", ".h", ".pxd", ".pyi", ".pyx"}
_DROPPED_NOTES = {".gitignore", "INSTALLER", "REQUESTED", "direct_url.json"}
"""Files for developers, and files of pip, which differ by the machine that installs."""
_SCRIPT = """#!/usr/lib/edgepack/bin/python -I
from edgepack.agent.cli import main

main()
"""
_LAUNCHER = Path(__file__).with_name("launcher.sh")
_ADDED = "/usr/local/lib/edgepack"
"""Folder for distributions that the owner of a device adds, such as another provider."""


class PackagingError(Exception):
    """A package that cannot be built; the text has the problem and the remedy."""


def find_python(version: str) -> str:
    """Return the program of a minor version of Python, which resolves wheels and compiles modules.

    Args:
        version: Such as `3.11`.

    Raises:
        PackagingError: The version is unknown or not installed.
    """
    if version not in RELEASES:
        raise PackagingError(f"no packages for Python {version}; try one of {', '.join(RELEASES)}")
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        return sys.executable
    program = shutil.which(f"python{version}")
    if program is None:
        raise PackagingError(
            f"python{version} is not installed, and packages for it need it; "
            f"install it, or run this on {RELEASES[version].name}"
        )
    return program


def build_wheel(folder: Path) -> Path:
    """Build the wheel of this repository.

    Args:
        folder: Receives the wheel.
    """
    _run("pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, REPOSITORY)
    return next(folder.glob("edgepack-*.whl"))


def install_wheels(wheel: Path, python: str, architecture: str, tree: Path) -> None:
    """Install the agent and its provider for another machine, each file checked by its hash.

    Args:
        wheel: Of this repository.
        python: Minor version of Python.
        architecture: Debian's name.
        tree: New folder.

    Raises:
        PackagingError: A wheel is missing for the machine, or has another hash.
    """
    tags = platform_tags(RELEASES[python], architecture)
    install = ("pip", "--python", find_python(python), "install", "--no-deps", "--no-compile")
    chosen = ("--only-binary=:all:", *(f"--platform={tag}" for tag in tags), f"--target={tree}")
    pinned = str(REPOSITORY / "requirements" / REQUIREMENTS)
    _run(*install, *chosen, "--require-hashes", "--requirement", pinned)
    _run(*install, "--no-index", "--target", tree, wheel)


def drop_unused(tree: Path) -> None:
    """Remove what a device does not need: other programs, tests, headers, types.

    Args:
        tree: Folder of installed distributions.
    """
    for path in list(walk(tree)):
        name = path.relative_to(tree).as_posix()
        if name in _DROPPED or (path.name in _DROPPED_FOLDERS and path.is_dir()):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        elif path.suffix in _DROPPED_SUFFIXES or path.name in _DROPPED_NOTES:
            path.unlink(missing_ok=True)
    for record in tree.glob("*.dist-info/RECORD"):
        lines = record.read_text().splitlines(keepends=True)
        present = [line for line in lines if (tree / line.split(",")[0].strip('"')).exists()]
        record.write_text("".join(present))


def installed(folder: Path) -> dict[str, importlib.metadata.Distribution]:
    """Return the distributions in a folder by canonical names."""
    notes = (path.parent for path in sorted(folder.glob("*.dist-info/METADATA")))
    found = map(importlib.metadata.Distribution.at, notes)
    return {canonicalize_name(one.name): one for one in found}


def required_names(tree: Path, python: str) -> set[str]:
    """Return the distributions that edgepack needs without an extra, by canonical names.

    Args:
        tree: Folder of installed distributions.
        python: Minor version of Python.
    """
    environment = {"extra": "", "python_version": python, "python_full_version": f"{python}.0"}
    present = installed(tree)
    found: set[str] = set()
    waiting = ["edgepack"]
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name in found:
            continue
        found.add(name)
        for text in present[name].requires or ():
            needed = Requirement(text)
            if needed.marker is None or needed.marker.evaluate(environment):
                waiting.append(needed.name)
    return found


def move_distributions(tree: Path, names: Iterable[str], root: Path, python: str) -> Path:
    """Move distributions to the environment of a package.

    Args:
        tree: Folder of installed distributions.
        names: Canonical names.
        root: Files of the package, as they are installed below `/`.
        python: Minor version of Python.

    Returns:
        The folder of the moved distributions.
    """
    target = root / HOME / "lib" / f"python{python}" / "site-packages"
    present = installed(tree)
    for name in names:
        for file in present[name].files or ():
            if ".." not in file.parts:
                place = target / file
                place.parent.mkdir(parents=True, exist_ok=True)
                (tree / file).replace(place)
                place.chmod(0o644)
    return target


def write_programs(root: Path, python: str) -> None:
    """Write what makes an environment of a folder: interpreter, command, search path; and the
    launcher, which has the name of the command.

    Args:
        root: Files of the package, as they are installed below `/`.
        python: Minor version of Python.
    """
    home = root / HOME
    (home / "bin").mkdir(parents=True)
    (home / "bin/python").symlink_to(f"../../../bin/python{python}")
    (home / "bin/edgepack-agent").write_text(_SCRIPT)
    (home / "bin/edgepack-agent").chmod(0o755)
    (home / "pyvenv.cfg").write_text(f"home = /usr/bin\nversion = {python}\n")
    (home / f"lib/python{python}/site-packages/added.pth").write_text(f"{_ADDED}\n")
    (root / "usr/bin").mkdir(parents=True)
    shutil.copyfile(_LAUNCHER, root / "usr/bin/edgepack-agent")
    (root / "usr/bin/edgepack-agent").chmod(0o755)


def compile_modules(root: Path, python: str) -> None:
    """Compile all modules of a package, so that no device has to.

    The compiled files are valid whatever the times of the sources, since packages change times.

    Args:
        root: Files of the package, as they are installed below `/`.
        python: Minor version of Python.
    """
    words = ("-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", "-s", str(root))
    ended = subprocess.run(
        [find_python(python), "-I", *words, "-p", "/", str(root / HOME)],
        env={**os.environ, "PYTHONHASHSEED": "0"},
        check=False,
        capture_output=True,
        text=True,
    )
    if ended.returncode:
        raise PackagingError(f"modules cannot be compiled: {ended.stdout[-2000:]}")


def needed_glibc(folder: Path) -> int:
    """Return the minor version of glibc 2 that the wheels in a folder need.

    Args:
        folder: Folder of installed distributions.
    """
    needed = [17]
    for path in folder.glob("*.dist-info/WHEEL"):
        text = path.read_text().replace("manylinux2014", "manylinux_2_17")
        if minors := [int(minor) for minor in re.findall(r"manylinux_2_(\d+)_", text)]:
            needed.append(min(minors))
    return max(needed)


def _run(*words: str | Path) -> None:
    """Run a module of this Python; its text is shown only if it fails."""
    command = [sys.executable, "-m", *map(str, words)]
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    if ended.returncode:
        raise PackagingError(f"`{words[0]}` failed: {ended.stderr.strip()[-2000:]}")

"""Packages as `make packages` builds them, and a root of Debian; both for this machine."""

import hashlib
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from system_packages.image import run_mmdebstrap
from system_packages.targets import DEBIAN, MACHINES, RELEASES
from tests.simulators.programs import require

REPOSITORY = Path(__file__).parents[2]
CACHE = REPOSITORY / ".cache/packages"
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
_NAMES = f"python{PYTHON},systemd"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all tests of this folder."""
    folder = f"{Path(__file__).parent}/"
    for item in items:
        if str(item.path).startswith(folder):
            item.add_marker("packages")


@pytest.fixture(scope="session")
def architecture() -> str:
    for name, machine in MACHINES.items():
        if machine == platform.machine():
            return name
    pytest.skip(f"there are no packages for {platform.machine()}")


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the packages and of the image, for both architectures."""
    require("mmdebstrap", "dpkg-deb", is_root=True)
    if PYTHON not in RELEASES or RELEASES[PYTHON].name not in DEBIAN:
        pytest.skip(f"no Debian has Python {PYTHON} as its own")
    folder = tmp_path_factory.mktemp("built")
    words = [f"--output={folder}", f"--cache={CACHE}", "--preset=0"]
    command = [sys.executable, "-m", "system_packages", *words]
    ended = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return folder


@pytest.fixture(scope="session")
def debian_root(built: Path, architecture: str) -> Path:
    """Return the archive of a small Debian with systemd, and with the Python of the packages."""
    options = ("--variant=minbase", "--dpkgopt=path-exclude=/usr/share/locale/*")
    key = hashlib.sha256(repr((_NAMES, options)).encode()).hexdigest()[:8]
    archive = CACHE / f"{RELEASES[PYTHON].name}-{architecture}-{key}.tar"
    if not archive.exists():
        run_mmdebstrap(RELEASES[PYTHON].name, architecture, _NAMES, archive, *options, epoch=0)
    return archive

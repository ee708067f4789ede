"""Places of the shipped models, and of derived files."""

import importlib.util
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.tasks.task import Array
from edgepack.errors import BuildError

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".bench"
INSTALL_COMMAND = "pip install --no-deps -r benchmarks/requirements.txt"


def package_folder(package: str) -> Path:
    """Return the folder of an installed package, without an import.

    Raises:
        BuildError: The package is not installed.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise BuildError(
            f"the benchmark needs the package {package}, which is not installed",
            remedy=INSTALL_COMMAND,
        )
    return Path(spec.submodule_search_locations[0])


def unpacked_folder(requirement: str, package: str) -> Path:
    """Return the folder of a package in a separate release, next to the installed release.

    Args:
        requirement: Name and version, `rapidocr-onnxruntime==1.2.3`.
        package: Import name.

    Raises:
        BuildError: The folder is missing.
    """
    root = CACHE / "packages" / requirement
    if not (root / package).is_dir():
        raise BuildError(
            f"the benchmark needs {requirement}, which is not unpacked",
            remedy=f"pip install --no-deps --target {root.relative_to(ROOT)} {requirement}",
        )
    return root / package


def cached_arrays(name: str, make: Callable[[], dict[str, Array]]) -> dict[str, Array]:
    """Return arrays that are made once and then read from `.bench/data/NAME.npz`."""
    file = CACHE / "data" / f"{name}.npz"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_name(f"{name}.unfinished.npz")
        np.savez_compressed(unfinished, **make())  # type: ignore[arg-type]
        unfinished.replace(file)
    with np.load(file, allow_pickle=False) as arrays:
        return {key: arrays[key] for key in arrays.files}

"""Settings of every test run."""

import gc
import importlib
import os
import random
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

_MEMORY = Path("/dev/shm")
_LEAST_BYTES = 6_000_000_000


def _keep_temporary_files_in_memory() -> None:
    """Move temporary files to memory if there is room: agents sync files thousands of times."""
    if "TMPDIR" in os.environ or not os.access(_MEMORY, os.W_OK):
        return
    if shutil.disk_usage(_MEMORY).free >= _LEAST_BYTES:
        os.environ["TMPDIR"] = str(_MEMORY)
        tempfile.tempdir = None


def _compute_as_the_command_does() -> None:
    """Let numpy compute on one thread, since threads that wait spin, and seldom look for garbage.

    `edgepack build` does the same. Children get the environment that they would have elsewhere.
    """
    gc.set_threshold(50_000)
    if "OPENBLAS_NUM_THREADS" not in os.environ:
        os.environ["OPENBLAS_NUM_THREADS"] = "1"
        importlib.import_module("numpy")
        del os.environ["OPENBLAS_NUM_THREADS"]


_compute_as_the_command_does()
_keep_temporary_files_in_memory()
_RUNTIME = tempfile.TemporaryDirectory(prefix="edgepack-runtime-")
os.environ["XDG_RUNTIME_DIR"] = _RUNTIME.name
os.environ["PIP_NO_COMPILE"] = "no"  # pip's word for "do not": most modules are never imported


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add an option for the order of tests."""
    parser.addoption("--shuffle", metavar="SEED", help="shuffle files, and the tests of a file")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Shuffle files and the tests of a file by a seed; fixtures of a file are still made once."""
    if seed := config.getoption("--shuffle"):
        drawn = random.Random(seed)
        files = {file: drawn.random() for file in dict.fromkeys(item.path for item in items)}
        items.sort(key=lambda item: (files[item.path], drawn.random()))


def pytest_configure(config: pytest.Config) -> None:
    """Let examples of hypothesis take any time, and be the same in all runs but shuffled runs."""
    settings.register_profile(
        "edgepack",
        deadline=None,
        derandomize=not config.getoption("--shuffle"),
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )
    settings.load_profile("edgepack")


def pytest_collection_finish() -> None:
    """Spare the ten thousand collected tests each search for garbage."""
    gc.collect()
    gc.freeze()

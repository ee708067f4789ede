"""Settings of every test run."""

import os
import shutil
import tempfile
from pathlib import Path

_MEMORY = Path("/dev/shm")
_LEAST_BYTES = 6_000_000_000


def _keep_temporary_files_in_memory() -> None:
    """Move temporary files to memory if there is room: agents sync files thousands of times."""
    if "TMPDIR" in os.environ or not os.access(_MEMORY, os.W_OK):
        return
    if shutil.disk_usage(_MEMORY).free >= _LEAST_BYTES:
        os.environ["TMPDIR"] = str(_MEMORY)
        tempfile.tempdir = None


_keep_temporary_files_in_memory()
_RUNTIME = tempfile.TemporaryDirectory(prefix="edgepack-runtime-")
os.environ["XDG_RUNTIME_DIR"] = _RUNTIME.name

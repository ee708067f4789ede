"""Programs that tests need: a skip where a program is missing, a failure in the full run."""

import os
import shutil

import pytest

FULL_RUN = "EDGEPACK_FULL_RUN"
"""Set by `.ci/run`, which installs every program."""


def require(*programs: str, is_root: bool = False) -> None:
    """Skip the test if a program or root's rights are missing; fail in the full run."""
    missing = [name for name in programs if shutil.which(name) is None]
    if is_root and os.geteuid() != 0:
        missing.append("root")
    if missing:
        because = f"not here: {', '.join(missing)}"
        if os.environ.get(FULL_RUN):
            pytest.fail(because)
        pytest.skip(because)

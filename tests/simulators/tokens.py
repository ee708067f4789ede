"""Tokens to sign with: SoftHSM's, which are real PKCS #11 tokens without hardware."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

MODULE = Path("/usr/lib/softhsm/libsofthsm2.so")
PIN = "0987-secret"
CONFIG_VARIABLE = "SOFTHSM2_CONF"


def start_tokens(folder: Path) -> None:
    """Set SoftHSM's token folder for this process and its children.

    SoftHSM reads the folder once per process, so a whole test session has a single folder.
    """
    if not MODULE.exists() or shutil.which("softhsm2-util") is None:
        pytest.skip("softhsm2 is not installed")
    (folder / "tokens").mkdir()
    config = folder / "softhsm2.conf"
    config.write_text(f"directories.tokendir = {folder / 'tokens'}\nlog.level = ERROR\n")
    os.environ[CONFIG_VARIABLE] = str(config)


def make_token(label: str) -> None:
    """Make an empty token."""
    subprocess.run(
        (
            *("softhsm2-util", "--init-token", "--free", "--label", label),
            *("--pin", PIN, "--so-pin", "12345678"),
        ),
        check=True,
        capture_output=True,
    )

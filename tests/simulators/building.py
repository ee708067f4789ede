"""`edgepack build` as a user runs it, for tests that then roll the bundle out."""

import sys
from pathlib import Path

from tests.simulators import warm_programs


def build_archive(model: Path, calibration: Path, key: Path, archive: Path, *options: str) -> Path:
    """Build a float variant with the command, and return the archive.

    Args:
        model: The ONNX file.
        calibration: Samples, see `--calibration`.
        key: The signing key.
        archive: The bundle to write, NAME-VERSION.edgepack.
        options: More options of the command.
    """
    command = [sys.executable, "-m", "edgepack.cli", "build", str(model), "--profile", "fp32"]
    command += ["--calibration", str(calibration), "--key", str(key), "-o", str(archive), *options]
    done = warm_programs.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return archive

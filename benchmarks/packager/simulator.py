"""The bare process that opens what was built on its vendor's simulator and runs it.

Nothing of a build is in it, nor onnx: it opens the bundle's variant as a device does and runs it on
as many samples as a build tries on a simulator, on one CPU as a build does.

    python -m benchmarks.packager.simulator --bundle FOLDER --calibration-folder FOLDER
"""

import argparse
from pathlib import Path

import numpy as np

from edgepack.agent.runtime.opening import open_session
from edgepack.bundle.manifest import MANIFEST_FILE, decode_manifest
from edgepack.packager.runtime.one_cpu import keep_to_one_cpu

_SAMPLES = 2


def main() -> None:
    """Opens the one variant of the bundle that the command line names."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--bundle", type=Path, required=True)
    parser.add_argument("--calibration-folder", type=Path, required=True)
    given = parser.parse_args()
    (variant,) = decode_manifest((given.bundle / MANIFEST_FILE).read_bytes()).variants
    keep_to_one_cpu(variant.provider)
    session = open_session(given.bundle, variant)
    for file in sorted(given.calibration_folder.glob("*.npz"))[:_SAMPLES]:
        with np.load(file, allow_pickle=False) as arrays:
            session.run({tensor.name: arrays[tensor.name] for tensor in session.inputs})


if __name__ == "__main__":
    main()

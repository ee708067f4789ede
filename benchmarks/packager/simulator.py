"""Bare process that opens and runs a built model on its vendor's simulator.

The process contains no part of a build, nor onnx: the process opens the bundle's variant like a
device and runs as many samples as a build on a simulator, on a single CPU like a build.

    python -m benchmarks.packager.simulator --bundle FOLDER --calibration-folder FOLDER
"""

import argparse
from pathlib import Path

import numpy as np

from edgepack.agent.runtime.one_cpu import keep_to_one_cpu
from edgepack.agent.runtime.opening import open_session
from edgepack.bundle.manifest import MANIFEST_FILE, decode_manifest

_SAMPLES = 2


def main() -> None:
    """Open the only variant of the command line's bundle."""
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

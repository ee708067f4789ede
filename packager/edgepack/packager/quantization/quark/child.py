"""The child that runs AMD Quark, in an environment that has Quark and need not have edgepack.

The child is run by path and imports nothing of edgepack:

    /path/to/quark/bin/python child.py      (request on stdin, answer on stdout, both JSON)

Request: `model`, `output`: paths; `samples`: folder of .npz, a sample per file, arrays by input
name; `config`: name of a Quark configuration; `exclude`: nodes that stay float. Answer: `version`
of Quark, when the output was written. A failure ends the process, and the parent reports the last
line.
"""

import ctypes
import importlib
import importlib.metadata
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

_PR_SET_PDEATHSIG = 1
"""Of Linux's prctl(2)."""


class Reader:
    """The samples, in Quark's interface; Quark reads the samples more than once.

    Args:
        folder: See the request.
    """

    def __init__(self, folder: Path) -> None:
        self._paths = sorted(folder.glob("*.npz"))
        self._left = iter(self._paths)

    def get_next(self) -> dict[str, Any] | None:
        """Return the next sample, or None at the end."""
        path = next(self._left, None)
        if path is None:
            return None
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}

    def rewind(self) -> None:
        """Start again."""
        self._left = iter(self._paths)

    reset_iter = rewind

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.get_next, None)

    def __len__(self) -> int:
        return len(self._paths)


def quantize(request: dict[str, Any]) -> None:
    """Run Quark."""
    quark = importlib.import_module("quark.onnx")
    configuration = importlib.import_module("quark.onnx.quantization.config")
    settings = configuration.get_default_config(request["config"])
    settings.nodes_to_exclude = list(request["exclude"])
    quantizer = quark.ModelQuantizer(configuration.Config(global_quant_config=settings))
    quantizer.quantize_model(request["model"], request["output"], Reader(Path(request["samples"])))


def main() -> None:
    """Read a request, run Quark, answer; prints of Quark go to stderr."""
    if sys.platform == "linux":
        # the kernel kills it when its parent ends, as edgepack.agent.runtime.child does
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    request = json.load(sys.stdin)
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    os.chdir(Path(request["output"]).parent)  # Quark leaves tables where it is run
    quantize(request)
    with answer:
        answer.write(json.dumps({"version": importlib.metadata.version("amd-quark")}) + "\n")


if __name__ == "__main__":
    main()

"""Arguments of every runner, and the calibration samples; needs only NumPy."""

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Feeds = dict[str, npt.NDArray[Any]]
"""One inference's inputs by name, batch axis included."""

EXIT_REFUSED = 3
"""The tool itself said that the model cannot be made well; its reason is the last line."""

TOLD_FILE = "told.json"
"""Beside the output, where a runner has something to tell of the model that it wrote: `note`, in
words, `candidates`, how many the tool made before it was content, and `prediction`, what its own
report says of it."""

BUNDLE_FOLDER = "bundle"
"""Beside the output, the bundle that edgepack took its model out of."""


@dataclass(frozen=True, kw_only=True)
class Given:
    """Arguments of a runner.

    Attributes:
        model: The ONNX file as shipped.
        calibration_folder: A `.npz` for each sample.
        shapes: Input shapes that the task fixes, for settings with this requirement in their
            documentation.
        metric: `module:function`, the task's metric over samples that the benchmark does not
            print, for the settings that say so.
        config: What a user of edgepack declares, an edgepack.toml; None for nothing.
        output: Where the model goes, a file.
    """

    model: Path
    calibration_folder: Path
    shapes: dict[str, tuple[int, ...]]
    metric: str
    config: Path | None
    output: Path

    def samples(self) -> Iterator[Feeds]:
        """Yield calibration samples in the order of their names."""
        for file in sorted(self.calibration_folder.glob("*.npz")):
            with np.load(file, allow_pickle=False) as arrays:
                yield {name: arrays[name] for name in arrays.files}


Setting = Callable[[Given], None]
"""Writes `output` from `model`."""


def run_setting(settings: Mapping[str, Setting]) -> None:
    """Read the command line and run its setting.

    Args:
        settings: The peer's settings, by name.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--calibration-folder", type=Path, required=True)
    parser.add_argument("--setting", choices=settings, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--shape", type=_shape, action="append", default=[])
    parser.add_argument("--metric", default="")
    parser.add_argument("--config", type=Path)
    given = parser.parse_args()
    settings[given.setting](
        Given(
            model=given.model,
            calibration_folder=given.calibration_folder,
            shapes=dict(given.shape),
            metric=given.metric,
            config=given.config,
            output=given.output,
        )
    )


def refuse(because: str) -> None:
    """End the runner: the tool rejected the model."""
    print(because, file=sys.stderr)
    sys.exit(EXIT_REFUSED)


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, _, sizes = text.rpartition("=")
    return name, tuple(map(int, sizes.split(",")))

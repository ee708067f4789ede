"""Measures the memory of an application through swaps: `python -m benchmarks.swaps`.

An application runs inferences on two threads while the release is swapped for an equal release,
again and again. Its memory is read in the same way as by its telemetry, after each swap, once the
old release is gone and the new release has run inferences. The gate `memory` compares two releases
on a device, so its limit must be above the ratio of two equal releases.
"""

import argparse
import json
import multiprocessing
import statistics
import tempfile
from pathlib import Path
from typing import NamedTuple

import msgspec

from benchmarks.swaps.serving import serve
from benchmarks.swaps.slots import NAME, lay_out
from benchmarks.tasks.places import package_folder
from edgepack.fleet.documents.gates import BY_NAME


class Subject(NamedTuple):
    """A model that is swapped."""

    title: str
    path: Path
    shape: tuple[int, ...]


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of an application.

    Attributes:
        model: The swapped model.
        threads: Threads within an operator.
        bytes_after: Memory of the process: after the open, and after each swap, bytes.
    """

    model: str
    threads: int
    bytes_after: tuple[int, ...]

    @property
    def ratios(self) -> list[float]:
        """Memory after each swap as a multiple of that before the swap."""
        pairs = zip(self.bytes_after[1:], self.bytes_after, strict=False)
        return [after / before for after, before in pairs]

    @property
    def growth(self) -> float:
        """Middle memory after the last three swaps as a multiple of that before the first.

        One measurement may meet a release that the C library gives back a moment later.
        """
        return statistics.median(self.bytes_after[-3:]) / self.bytes_after[0]


def subjects() -> list[Subject]:
    """Return a text detector and a text recognizer of 5 and 11 MB."""
    folder = package_folder("rapidocr_onnxruntime") / "models"
    return [
        Subject("text detector", folder / "ch_PP-OCRv4_det_infer.onnx", (1, 3, 320, 320)),
        Subject("text recognizer", folder / "ch_PP-OCRv4_rec_infer.onnx", (1, 3, 48, 320)),
    ]


def measure(subject: Subject, releases: int, threads: int) -> Measured:
    """Measure an application in a fresh process."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        state_dir = Path(folder)
        (state_dir / "models" / NAME).mkdir(parents=True)
        pointers = lay_out(state_dir, subject.path, subject.shape, releases)
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=serve, args=(theirs, state_dir, pointers, threads))
        process.start()
        theirs.close()
        found = ours.recv()
        process.join()
    return Measured(model=subject.title, threads=threads, bytes_after=tuple(found))


def main() -> None:
    """Print a table, and write the numbers."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.swaps", description=__doc__)
    parser.add_argument("--swaps", type=int, default=30)
    parser.add_argument("--output", type=Path, help="JSON file")
    given = parser.parse_args()
    runs = [
        measure(subject, given.swaps + 1, threads) for subject in subjects() for threads in (1, 2)
    ]
    print("model            threads  first MB  last MB  one swap: median  greatest  all swaps")
    for run in runs:
        first, last = run.bytes_after[0] / 1e6, run.bytes_after[-1] / 1e6
        print(
            f"{run.model:16} {run.threads:7} {first:9.0f} {last:8.0f} "
            f"{statistics.median(run.ratios):17.3f} {max(run.ratios):9.3f} {run.growth:10.3f}"
        )
    ratios = sorted(ratio for run in runs for ratio in run.ratios)
    print(
        f"\n{len(ratios)} swaps: mean {statistics.mean(ratios):.3f}, "
        f"95 % up to {ratios[int(0.95 * len(ratios))]:.3f}, greatest {ratios[-1]:.3f}; "
        f"the gate lets pass {BY_NAME['memory'].threshold:g}"
    )
    if given.output:
        given.output.write_text(json.dumps(msgspec.to_builtins(runs), indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Selection of held-out samples as golden inputs, with the float model's outputs, and of their
pictures.

Models with random outputs for the same sample cannot be compared. Some random numbers belong to a
model and are harmless, such as the dither of an audio front end. So the outputs decide, and the
operators only explain.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from edgepack.bundle.golden import Golden
from edgepack.bundle.golden_pictures import (
    MOST_PICTURES,
    SOUND_SUFFIX,
    SUFFIXES,
    picture_path,
    sound_path,
)
from edgepack.errors import BuildError
from edgepack.packager.graph.operators import facts
from edgepack.packager.graph.queries import all_nodes
from edgepack.packager.progress import BuildStep, Progress
from edgepack.packager.runtime.model_run import largest_difference
from edgepack.packager.source.model import SourceModel
from edgepack.packager.source.reference import FloatSource, open_reference
from edgepack.packager.tensors.sequence import Feeds, Samples
from edgepack.packager.wording import some_of, toml_key
from edgepack.tasks.arrays import Floats, Outputs, Tensor
from edgepack.tasks.description import IGNORED
from edgepack.text import counted

MOST_SAMPLES = 8
SIZE_LIMIT_BYTES = 2_000_000
"""Golden samples reach every device: a few, and small. One sample may be larger than this."""

_CANDIDATES = 64
_POSITION_VALUES = 4096


_TOLERANCE = 5e-3
"""Share of an output's size by which two runs may differ: what a pass may change is no more."""

_SHOWN = 3

_PICTURES_LIMIT_BYTES = 2_000_000
"""Golden pictures reach every device: a few, and small."""


def choose_golden(
    source: SourceModel,
    held_out: Samples,
    work_dir: Path,
    progress: Progress,
    float_source: FloatSource,
    tells: Callable[[Feeds], bool] = lambda outputs: True,
) -> tuple[Golden, tuple[int, ...]]:
    """Pick samples with outputs far from each other, and run the source model on these samples.

    Candidates that tell nothing are left out, unless none tells anything. The first of the others
    is taken; then, greedily, the candidate that is farthest from all chosen samples. The same
    samples always give the same choice.

    Args:
        source: The float model; runs unchanged, on ONNX Runtime's CPU provider.
        held_out: Where to pick from.
        work_dir: Folder for the model that runs.
        progress: Called for each candidate that ran.
        float_source: Stores the candidates' outputs.
        tells: Whether outputs contain the model's findings.

    Returns:
        1 … 8 samples, of at most 2 MB together unless a single sample is larger, in the order of
        choice: a device that computes two samples computes two unlike samples. And their places
        among the held-out samples.

    Raises:
        BuildError: The source model does not run on a sample, gives NaN or infinity, or something
            else each time.
    """
    run = _Reference(source, work_dir)
    count = min(held_out.count, _CANDIDATES)
    inputs: list[Feeds] = []
    outputs: list[Feeds] = []
    telling: list[int] = []
    for index in range(count):
        inputs.append(held_out.read(index))
        given = run(inputs[-1], held_out.title(index))
        if index == 0:
            check_repeatable(source, given, run(inputs[-1], held_out.title(index)))
        float_source.remember(inputs[-1], given)
        compared = held_out.golden(index, given)
        outputs.append({n: value for n, value in compared.items() if n not in source.watched})
        telling += [index] if tells(given) else []
        progress(BuildStep(what="running the float model", done=index + 1, total=count))
    places = telling or list(range(count))
    sizes = _sizes([outputs[index] for index in places])
    points = [_position(outputs[index], sizes) for index in places]
    kept: list[int] = []
    size = 0
    for index in (places[number] for number in _spread(points, MOST_SAMPLES)):
        added = sum(array.nbytes for array in (*inputs[index].values(), *outputs[index].values()))
        if kept and size + added > SIZE_LIMIT_BYTES:
            continue
        kept.append(index)
        size += added
    golden = Golden(
        inputs=tuple(inputs[index] for index in kept),
        outputs=tuple(outputs[index] for index in kept),
    )
    return golden, tuple(kept)


class _Reference:
    """The unchanged source model, on a single thread, so that sums have a fixed order."""

    def __init__(self, source: SourceModel, work_dir: Path) -> None:
        self._unread = set(source.description.outputs_of(IGNORED))
        self._run = open_reference(source, work_dir / "golden.onnx", threads=1)

    def __call__(self, feeds: Feeds, title: str) -> Feeds:
        outputs = self._run(feeds)
        for name, array in outputs.items():
            if name in self._unread:
                continue
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise BuildError(
                    f"the float model gives NaN or infinity in output {name!r} on a held-out "
                    "sample: nothing can be compared with that",
                    found_in=title,
                    remedy="check the sample's preprocessing, and the model on that sample; or "
                    f"leave the output out: task = 'ignored' in [outputs.{toml_key(name)}]",
                )
        return outputs


def _sizes(outputs: Sequence[Feeds]) -> dict[str, float]:
    """Return root-mean-square of each output's samples, each sample as a vector; 1 if all are
    zeros.

    A sample with a detector's findings stands out by its size: normalized to length 1, such a
    sample and samples with tiny scores would be a single point.
    """
    sizes = {}
    for name in _numeric(outputs[0]):
        squares = [float(np.square(_thinned(output[name])).sum()) for output in outputs]
        sizes[name] = float(np.sqrt(np.mean(squares))) or 1.0
    return sizes


def _position(outputs: Feeds, sizes: Mapping[str, float]) -> Floats:
    """Return a point for a sample's outputs, each with the same weight over all samples."""
    parts = [_thinned(outputs[name]) / sizes[name] for name in _numeric(outputs)]
    return np.concatenate(parts) if parts else np.zeros(1)


def _numeric(outputs: Feeds) -> list[str]:
    return sorted(name for name, array in outputs.items() if array.dtype.kind in "fiub")


def _thinned(array: Tensor) -> Floats:
    """Return a few thousand values of an output."""
    flat = array.ravel()
    return flat[:: max(1, flat.size // _POSITION_VALUES)].astype(np.float64)


def _spread(points: list[Floats], most: int) -> list[int]:
    """Return indices of points far from each other, the first point first."""
    width = max(point.size for point in points)
    table = np.stack([np.pad(point, (0, width - point.size)) for point in points])
    chosen = [0]
    nearest = np.linalg.norm(table - table[0], axis=1)
    while len(chosen) < min(most, len(points)):
        nearest[chosen] = -1.0
        farthest = int(np.argmax(nearest))
        chosen.append(farthest)
        nearest = np.minimum(nearest, np.linalg.norm(table - table[farthest], axis=1))
    return chosen


def check_repeatable(source: SourceModel, first: Outputs, second: Outputs) -> None:
    """Reject a model with outputs that differ from run to run.

    Args:
        source: The model.
        first, second: Its outputs for a sample, in two runs on a single thread.

    Raises:
        BuildError: The outputs differ; the message names the nodes that draw random numbers.
    """
    differing = [
        name
        for name, value in first.items()
        if value.dtype.kind in "iub" and not np.array_equal(value, second[name])
    ]
    noise = largest_difference([first], [second], source.description)
    if not differing and noise <= _TOLERANCE:
        return
    makers = [
        f"{node.name or node.output[0]} ({node.op_type})"
        for node in all_nodes(source.model.graph)
        if facts(node.op_type).draws
    ]
    raise BuildError(
        "the float model gives other outputs each time it runs on the same sample: nothing can be "
        "compared with that",
        found_in=f"{source.path}, random numbers: {some_of(makers, _SHOWN)}"
        if makers
        else str(source.path),
        remedy="export it for inference (PyTorch: model.eval()), and with random numbers that "
        "belong to it as an input",
    )


def choose_sounds(files: Sequence[Path]) -> tuple[tuple[str, Path], ...]:
    """Return the sounds of golden samples, path in the bundle and file, as many as fit in 2 MB.

    Args:
        files: File of each golden sample; other files than sounds are left out.
    """
    chosen: list[tuple[str, Path]] = []
    left = _PICTURES_LIMIT_BYTES
    for number, file in enumerate(files):
        size = file.stat().st_size
        if file.suffix.lower() == SOUND_SUFFIX and size <= left:
            chosen.append((sound_path(number), file))
            left -= size
    return tuple(chosen)


def choose_pictures(
    held_out: Samples, golden: tuple[int, ...]
) -> tuple[tuple[tuple[str, Path], ...], str]:
    """Return the pictures of golden samples, as many whole samples as fit in 2 MB.

    Args:
        held_out: The held-out samples.
        golden: Places of the golden samples among them.

    Returns:
        Path in the bundle and file of each picture, and a note for a person; () and "" for samples
        that are arrays.
    """
    if held_out.pictures_of is None:
        return (), ""
    chosen: list[tuple[str, Path]] = []
    left, samples = _PICTURES_LIMIT_BYTES, 0
    for number, place in enumerate(golden):
        files = held_out.pictures_of(place)
        size = sum(file.stat().st_size for file in files)
        is_known = all(file.suffix.lower() in SUFFIXES for file in files)
        if size > left or len(chosen) + len(files) > MOST_PICTURES or not is_known:
            continue
        left, samples = left - size, samples + 1
        chosen += [
            (picture_path(number, row, file.suffix.lower()), file) for row, file in enumerate(files)
        ]
    if not chosen:
        return (), (
            "No golden picture proves the preparation on devices: each file is larger than "
            f"{_PICTURES_LIMIT_BYTES // 1_000_000} MB."
        )
    return tuple(chosen), (
        f"The bundle carries {counted(len(chosen), 'picture')} of the golden samples as given, "
        "with all that is in the files, such as a place in EXIF. Devices prove their preparation "
        "with these. --leave-out-pictures leaves them out."
    )

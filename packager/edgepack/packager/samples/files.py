"""Samples from plain files, checked against the model before anything long begins.

Samples given as arrays are written to files first.
"""

import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec
import numpy as np

from edgepack.errors import BuildError
from edgepack.packager.config.inputs import InputDeclaration, TokenInput, WantedInputs
from edgepack.packager.progress import BuildStep, Progress
from edgepack.packager.samples.formats import open_files
from edgepack.packager.tensors.sequence import Feeds, Samples, digest_of
from edgepack.packager.tensors.spec import TensorSpec
from edgepack.tasks.arrays import Tensor
from edgepack.text import counted

RANDOM_PREFIX = "random:"
FEW_SAMPLES = 32
"""Below it ranges depend on which samples they happen to be; ONNX Runtime's and NNCF's own
examples take 100 to 300."""

_MOST_RANDOM = 10_000

_SEED = 20_240_601

_REMEMBERED_BYTES = 8_000_000
"""Small samples are read from their files once; beyond this, memory counts for more than time."""


class OpenedSamples(msgspec.Struct, frozen=True, kw_only=True):
    """Samples that all fit the model.

    Attributes:
        samples: Different samples, in a stable order.
        digests: SHA-256 of each one's content, in the same order.
        notes: Notes on the samples for a person, a sentence each.
        is_random: Whether the samples were drawn, not given.
    """

    samples: Samples
    digests: tuple[bytes, ...]
    notes: tuple[str, ...]
    is_random: bool = False


def open_samples(where: str, wanted: WantedInputs, progress: Progress) -> OpenedSamples:
    """Open samples and read each once, so that a bad sample is named at the start.

    Args:
        where: A path (forms: `formats`), or `random:N` for N random samples; open sizes of these
            are 1.
        wanted: Inputs of each sample.
        progress: Called for each sample that was checked.

    Returns:
        The samples; duplicates are left out and noted, except in series.

    Raises:
        BuildError: There are no samples, or a sample does not fit the model.
    """
    if where.startswith(RANDOM_PREFIX):
        return _random_samples(where, wanted)
    path = Path(where)
    raw = open_files(path, wanted)
    kept: dict[bytes, int] = {}
    numbers, digests = list[int](), list[bytes]()
    conversions: dict[str, None] = {}
    levels: dict[str, set[float]] = {spec.name: set() for spec in wanted.specs}
    remembered = _Remembered()
    for index in range(raw.count):
        fitted = raw.fit(index)
        conversions.update(dict.fromkeys(fitted.conversions))
        for name, array in fitted.feeds.items():
            if name in levels and array.size > 1 and (array == array.flat[0]).all():
                levels[name].add(float(array.flat[0]))
            else:
                levels.pop(name, None)
        digest = digest_of(fitted.feeds)
        if kept.setdefault(digest, index) == index or wanted.steps:
            numbers.append(index)
            digests.append(digest)
            remembered.add(index, fitted.feeds)
        what = f"checking samples in {path.name}"
        progress(BuildStep(what=what, done=index + 1, total=raw.count))

    pictures = raw.pictures

    def read(index: int) -> Feeds:
        number = numbers[index]
        if (feeds := remembered.find(number)) is not None:
            return feeds
        return raw.fit(number).feeds

    return OpenedSamples(
        samples=Samples(
            count=len(numbers),
            read=read,
            source=where,
            file_of=lambda index: raw.label(numbers[index]),
            pictures_of=None if pictures is None else lambda index: pictures(numbers[index]),
        ),
        digests=tuple(digests),
        notes=(
            *raw.notes,
            *_notes(
                path.name,
                total=raw.count,
                different=len(kept),
                # What is the same in all is told of the divided samples (`coverage`).
                constant=[name for name, values in levels.items() if len(values) > 1],
                conversions=list(conversions),
            ),
        ),
    )


class _Remembered:
    """The first samples of a sequence, as many as fit in a few megabytes."""

    def __init__(self) -> None:
        self._samples: dict[int, Feeds] = {}
        self._spare_bytes = _REMEMBERED_BYTES

    def add(self, number: int, feeds: Feeds) -> None:
        """Keep a read-only copy, if there is free space."""
        self._spare_bytes -= sum(array.nbytes for array in feeds.values())
        if self._spare_bytes < 0:
            return
        copies = {name: np.array(array) for name, array in feeds.items()}
        for copy in copies.values():
            copy.flags.writeable = False
        self._samples[number] = copies

    def find(self, number: int) -> Feeds | None:
        """Return a sample that was kept, in a dict of its own."""
        feeds = self._samples.get(number)
        return None if feeds is None else dict(feeds)


def _notes(
    where: str,
    *,
    total: int,
    different: int,
    constant: list[str],
    conversions: list[str],
) -> list[str]:
    notes = []
    if different < total:
        verb = "repeats" if total - different == 1 else "repeat"
        notes.append(f"{total - different} of the {total} samples in {where} {verb} another one.")
    if different < FEW_SAMPLES:
        notes.append(
            f"Only {counted(different, 'different sample')} in {where}: 100 to 300 make ranges "
            "reliable."
        )
    if constant:
        notes.append(f"Every sample in {where} is constant in {', '.join(constant)}.")
    notes += [f"Samples in {where} were converted: {what}." for what in conversions]
    return notes


def _random_samples(where: str, wanted: WantedInputs) -> OpenedSamples:
    text = where.removeprefix(RANDOM_PREFIX)
    if not text.isdecimal() or not 1 <= int(text) <= _MOST_RANDOM:
        raise BuildError(
            f"'{where}' names no number of random samples from 1 to {_MOST_RANDOM:,}",
            remedy=f"{RANDOM_PREFIX}100",
        )

    def read(index: int) -> Feeds:
        generator = np.random.default_rng((_SEED, index))
        return {
            spec.name: _draw(spec, wanted.declarations.get(spec.name), generator)
            for spec in wanted.specs
        }

    count = int(text)
    samples = Samples(count=count, read=read, source=where)
    return OpenedSamples(
        samples=samples,
        digests=tuple(digest_of(feeds) for feeds in samples),
        notes=(
            f"The samples are random ({where}): neither ranges nor accuracy say anything about "
            "real inputs.",
        ),
        is_random=True,
    )


def _draw(
    spec: TensorSpec, declaration: InputDeclaration | None, generator: "np.random.Generator"
) -> Tensor:
    shape = tuple(size if isinstance(size, int) else 1 for size in spec.shape)
    if spec.dtype == "bool":
        return generator.random(shape) < 0.5
    if spec.dtype.startswith(("int", "uint")):
        end = declaration.vocabulary if isinstance(declaration, TokenInput) else 2
        return generator.integers(0, end, shape).astype(spec.dtype)
    if spec.dtype == "string":
        raise BuildError(f"input {spec.name!r} takes strings: random samples cannot be drawn")
    return generator.standard_normal(shape).astype(spec.dtype)


def write_arrays(samples: Iterable[Mapping[str, Tensor]], folder: Path) -> Path:
    """Write each sample as a .npz of its own, so that memory does not depend on their number.

    Args:
        samples: By input name an array, a dictionary per sample; read once.
        folder: Is made.

    Returns:
        The folder.

    Raises:
        BuildError: A sample is not a dictionary of arrays, or there are no samples.
    """
    folder.mkdir(parents=True)
    count = 0
    for count, sample in enumerate(samples, start=1):
        if not isinstance(sample, Mapping):
            raise BuildError(
                f"sample {count - 1} is a {type(sample).__name__}, not arrays by input name",
                found_in="calibration or evaluation",
                remedy='an iterable of dictionaries, e.g. [{"images": array}, …]',
            )
        _write(sample, folder / f"sample-{count - 1:06d}.npz", count - 1)
    if not count:
        raise BuildError(
            "the iterable of samples is empty",
            found_in="calibration or evaluation",
            remedy="give a list, or an iterator that was not read before",
        )
    return folder


def _write(sample: Mapping[str, Tensor], path: Path, number: int) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, value in sample.items():
            array = np.asanyarray(value)
            if array.dtype.hasobject:
                raise BuildError(
                    f"sample {number} has no numbers for input {name!r}",
                    found_in="calibration or evaluation",
                    remedy="an array of the input's dtype",
                )
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)

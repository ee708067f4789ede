"""Samples of a pipeline: pictures, sounds and texts as files, and arrays of its inputs."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from edgepack.agent.generation.completions import Completer
from edgepack.agent.runtime.sessions import SessionTensor
from edgepack.bundle.chunks import read_bounded
from edgepack.bundle.generation import TOKENIZER
from edgepack.bundle.golden_pictures import SOUND_SUFFIX
from edgepack.bundle.plain_arrays import encode_arrays, read_arrays
from edgepack.errors import BuildError, PictureError, SoundError
from edgepack.packager.samples.files import RANDOM_PREFIX
from edgepack.packager.samples.prompts import SUFFIX, read_texts
from edgepack.packager.stages.pipeline_file import PipelineSource
from edgepack.pictures.prepare import load_page
from edgepack.sound.features import prepare_start
from edgepack.sound.waves import Sound, open_sound
from edgepack.tasks.arrays import Tensor
from edgepack.tasks.inputs import PromptInput, SoundInput

_PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".ppm", ".tif", ".tiff", ".gif")
ANSWER_SUFFIX = ".txt"
"""Of a file with the right text of the sound of the same name."""
_MOST_ANSWER_BYTES = 1_000_000
_FEWEST = 4
_HELD_OUT = 3
"""Every third sample is held out for the gate."""


class PipelineSamples(msgspec.Struct, frozen=True, kw_only=True):
    """Samples of a pipeline.

    Attributes:
        calibration, held_out: Inputs of each sample.
        held_out_files: File of each held-out sample.
        answers: Right text of each held-out sample; () where the user gave none.
    """

    calibration: tuple[dict[str, Tensor], ...]
    held_out: tuple[dict[str, Tensor], ...]
    held_out_files: tuple[Path, ...]
    answers: tuple[str, ...] = ()


class _Sample(NamedTuple):
    """A sample.

    Attributes:
        file: Its file.
        feeds: Inputs of the pipeline.
        answer: Right text; None without one.
    """

    file: Path
    feeds: dict[str, Tensor]
    answer: str | None = None


def digest_samples(samples: Sequence[Mapping[str, Tensor]], answers: Sequence[str] = ()) -> str:
    """Return a SHA-256 over samples, and their answers, in their order, hex."""
    parts = (*map(encode_arrays, samples), *(answer.encode() + b"\0" for answer in answers))
    return hashlib.sha256(b"".join(parts)).hexdigest()


def open_pipeline_samples(
    source: PipelineSource, calibration: object, evaluation: object
) -> PipelineSamples:
    """Read the samples: pictures, sounds or texts, or `.npz` files with an array for each input.

    Args:
        source: Describes the inputs.
        calibration: Folder of the samples; texts are lines of a `.jsonl` file.
        evaluation: Held-out samples, likewise; "" holds out every third sample.

    Raises:
        BuildError: There are too few samples, or one cannot be read or does not fit.
    """
    samples = _read_folder(source, calibration, "--calibration")
    if evaluation:
        held_out = _read_folder(source, evaluation, "--evaluation")
    elif len(samples) < _FEWEST:
        raise BuildError(
            f"{len(samples)} samples cannot be divided, {_FEWEST} are needed at least",
            found_in=str(calibration),
            remedy="give 30 to 100 real samples",
        )
    else:
        held_out = samples[1::_HELD_OUT]
        samples = [one for place, one in enumerate(samples) if place % _HELD_OUT != 1]
    answers = [one.answer for one in held_out if one.answer is not None]
    if answers and len(answers) < len(held_out):
        raise BuildError(
            f"{len(answers)} of {len(held_out)} held-out samples have an answer",
            found_in=str(evaluation or calibration),
            remedy="give each sample an answer, or none",
        )
    return PipelineSamples(
        calibration=tuple(one.feeds for one in samples),
        held_out=tuple(one.feeds for one in held_out),
        held_out_files=tuple(one.file for one in held_out),
        answers=tuple(answers),
    )


def _read_folder(source: PipelineSource, given: object, option: str) -> list[_Sample]:
    if not isinstance(given, str | Path) or not given or str(given).startswith(RANDOM_PREFIX):
        raise BuildError(
            "a pipeline is built with real samples: its stages see what the stages before give",
            found_in=option,
            remedy=f"{option} FOLDER with pictures or sounds, or .npz files that have an array "
            "for each input; texts for an encoder-decoder come from a .jsonl file",
        )
    folder = Path(given)
    texts = source.texts
    if texts is not None and isinstance(texts.described, PromptInput) and folder.suffix == SUFFIX:
        inputs = [
            SessionTensor(name=one.name, dtype=one.dtype, shape=one.shape)
            for one in source.wiring.inputs
        ]
        completer = Completer(texts.described, inputs, texts.tokenizer.read_bytes())
        return _read_texts(completer, folder)
    wanted = (*_file_kinds(source), ".npz")
    paths = sorted(
        path
        for path in (folder.iterdir() if folder.is_dir() else ())
        if path.suffix.lower() in wanted
    )
    if not paths:
        takes_tokens = texts is None and folder.suffix == SUFFIX
        raise BuildError(
            f"no samples in {folder}: no file ends in {', '.join(wanted)}",
            found_in=option,
            remedy=f"a {SUFFIX} file of texts needs {TOKENIZER} in the folder of the model, and "
            "pip install 'edgepack[generative]'"
            if takes_tokens
            else "name a folder of real samples",
        )
    return [_read(source, path) for path in paths]


def _read_texts(completer: Completer, path: Path) -> list[_Sample]:
    """Return the sample of each text of a file."""
    samples = []
    for prompt in read_texts(path):
        try:
            feeds = completer.feeds_of(prompt.text)
        except ValueError as error:
            raise BuildError(
                str(error), found_in=f"{path}, line {prompt.line}", remedy="change the text"
            ) from error
        samples.append(_Sample(path, feeds, prompt.answer or None))
    return samples


def _file_kinds(source: PipelineSource) -> tuple[str, ...]:
    """Return the suffixes of files that a device prepares for the pipeline."""
    if source.texts is not None and isinstance(source.texts.described, SoundInput):
        return (SOUND_SUFFIX,)
    return _PICTURES if source.wiring.picture and len(source.wiring.inputs) == 1 else ()


def _read(source: PipelineSource, path: Path) -> _Sample:
    """Return a sample; of a sound that is longer than a chunk, the first chunk."""
    wiring, described = source.wiring, source.texts.described if source.texts else None
    try:
        if isinstance(described, SoundInput) and path.suffix.lower() == SOUND_SUFFIX:
            sound = open_sound(path)
            features = prepare_start(sound, described)
            feeds = {wiring.inputs[0].name: features.astype(wiring.inputs[0].dtype, copy=False)}
            return _Sample(path, feeds, _read_answer(path, sound, described))
        if path.suffix.lower() != ".npz":
            return _Sample(path, {wiring.picture: load_page(path)})
        arrays = read_arrays(path, path.stat().st_size)
    except (PictureError, SoundError, OSError, ValueError) as error:
        raise BuildError(
            f"cannot read the sample {path.name}: {error}", found_in=str(path)
        ) from error
    for one in wiring.inputs:
        found = arrays.get(one.name)
        if found is None or str(found.dtype) != one.dtype or found.ndim != len(one.shape):
            have = "is missing" if found is None else f"is {found.dtype} {list(found.shape)}"
            raise BuildError(
                f"input '{one.name}' of the sample {path.name} {have}, expected {one.dtype} "
                f"{list(one.shape)}",
                found_in=str(path),
                remedy="write arrays of the inputs with numpy.savez",
            )
    return _Sample(path, {one.name: arrays[one.name] for one in wiring.inputs})


def _read_answer(path: Path, sound: Sound, described: SoundInput) -> str | None:
    """Return the right text of a sound, the text file of the same name; None without one.

    Raises:
        BuildError: The text is of more than the sample.
    """
    file = path.with_suffix(ANSWER_SUFFIX)
    if not file.is_file():
        return None
    if sound.seconds > described.samples / described.rate:
        raise BuildError(
            f"{path.name} lasts {sound.seconds:.1f} s, and a sample is its first chunk of "
            f"{described.samples / described.rate:g} s: {file.name} is the text of more",
            found_in=str(path),
            remedy=f"cut the sound, or remove {file.name}",
        )
    return read_bounded(file, _MOST_ANSWER_BYTES).decode("utf-8-sig").strip()

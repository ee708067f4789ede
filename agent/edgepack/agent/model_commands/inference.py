"""An inference of the serving variant on a picture, a sound, or arrays of a file."""

from pathlib import Path
from tokenize import TokenError
from typing import Any

import msgspec
import numpy as np

from edgepack.agent.generation.transcripts import Transcriber
from edgepack.agent.model_commands.serving import find_runnable
from edgepack.agent.runtime.sessions import SessionTensor, Tensor
from edgepack.agent.runtime.slot_opening import OpenedSlot, open_slot
from edgepack.bundle.generation import TOKENIZER
from edgepack.bundle.golden_pictures import SOUND_SUFFIX, SUFFIXES
from edgepack.bundle.plain_arrays import read_arrays
from edgepack.errors import DeviceError
from edgepack.pictures.answers import answer_to
from edgepack.pictures.prepare import feed_picture
from edgepack.pictures.results import Box, Label, TextLine
from edgepack.sound.waves import open_sound

MAX_SHOWN = 1000
"""Values of an output that are shown, at most."""

_MAGIC = b"\x93NUMPY"
_UNREADABLE = (OSError, ValueError, EOFError, MemoryError, OverflowError, SyntaxError, TokenError)
"""What numpy raises for damaged files."""


class OutputValues(msgspec.Struct, frozen=True, kw_only=True):
    """Output of an inference.

    Attributes:
        name, dtype, shape: The tensor.
        values: Its first values, in C order; NaN and infinity are None.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    values: list[Any]


class Inference(msgspec.Struct, frozen=True, kw_only=True):
    """Result of an inference.

    Attributes:
        name, version, variant, provider: The variant that ran.
        latency_ms: Duration of the second run, milliseconds; of a sound, of all its chunks.
        outputs: The outputs; of a sound, for its last chunk.
        labels, boxes, text, lines: Answers to a picture, see `Answer`; `text` also of a sound.
    """

    name: str
    version: str
    variant: str
    provider: str
    latency_ms: float
    outputs: tuple[OutputValues, ...]
    labels: tuple[Label, ...] = ()
    boxes: tuple[Box, ...] = ()
    text: str | None = None
    lines: tuple[TextLine, ...] = ()


def infer(
    state_dir: Path, name: str, file: Path, *, threads: int
) -> tuple[Inference, dict[str, Tensor]]:
    """Run the serving variant on a picture, a sound or arrays; this counts in no statistics.

    Args:
        state_dir: The agent's state folder.
        name: The model.
        file: A picture; a sound, `.wav`; or `.npz` with an array for every input, by name, or
            `.npy` for a single input.
        threads: Threads within an operator; 0 leaves the number to ONNX Runtime.

    Returns:
        The result, and the whole outputs by name.

    Raises:
        EdgepackError: Nothing serves, the variant cannot run, the arrays do not fit, or the model
            takes no pictures.
    """
    pointer = find_runnable(state_dir, name)
    is_sound = file.suffix.lower() == SOUND_SUFFIX
    given = None if is_sound or file.suffix.lower() in SUFFIXES else _read(file)
    opened = open_slot(state_dir, pointer.digest, pointer.choice.chosen, threads=threads)
    inputs, described = opened.session.inputs, opened.manifest.facts.description
    frame, text = None, None
    try:
        if is_sound:
            text, outputs, latency_ms = _transcribe(opened, file)
        elif given is None:
            feeds, frame = feed_picture(file, described, [one.name for one in inputs])
        else:
            named = given if isinstance(given, dict) else {one.name: given for one in inputs[:1]}
            by_name = {one.name: one for one in inputs}
            feeds = {name: _fit(array, by_name.get(name)) for name, array in named.items()}
        if not is_sound:
            opened.session.run(feeds)
            outputs, latency_ms = opened.session.run_timed(feeds)
    except ValueError as error:
        raise DeviceError(
            str(error), found_in=str(file), remedy=f"the model takes {_describe(inputs)}"
        ) from error
    answer = answer_to(described, outputs, frame)
    result = Inference(
        name=name,
        version=pointer.bundle.version,
        variant=pointer.choice.chosen,
        provider=pointer.choice.provider,
        latency_ms=latency_ms,
        outputs=tuple(_shown(one, value) for one, value in outputs.items()),
        labels=answer.labels,
        boxes=answer.boxes,
        text=answer.text if text is None else text,
        lines=answer.lines,
    )
    return result, outputs


def _transcribe(opened: OpenedSlot, file: Path) -> tuple[str, dict[str, Tensor], float]:
    """Return the text of a sound, the outputs for its last chunk, and milliseconds of all.

    Raises:
        SoundError: The sound cannot be read.
        ValueError: The model makes no texts of sounds.
    """
    described = opened.manifest.facts.description.sound
    if described is None:
        raise ValueError("the model makes no texts of sounds: its bundle describes no sounds")
    transcriber = Transcriber(described, opened.session.inputs, opened.assets[TOKENIZER])
    runs = [opened.session.run_timed(feeds) for feeds in transcriber.feeds_of(open_sound(file))]
    outputs = [made for made, _ in runs]
    return transcriber.text_of(outputs), outputs[-1], sum(taken_ms for _, taken_ms in runs)


def _read(file: Path) -> dict[str, Tensor] | Tensor:
    """Read the arrays of a file; no code of the file runs.

    Raises:
        DeviceError: The file is missing or malformed.
    """
    try:
        if file.suffix == ".npz":
            return read_arrays(file, file.stat().st_size)
        with file.open("rb") as opened:
            if opened.read(len(_MAGIC)) != _MAGIC:
                raise ValueError("it is no file of numpy (.npy)")
        # Mapped: a header that promises more than the file has is rejected before any memory.
        array = np.load(file, mmap_mode="r", allow_pickle=False)
        return np.array(array)
    except _UNREADABLE as error:
        because = error.strerror if isinstance(error, OSError) else error
        raise DeviceError(
            f"the arrays cannot be read: {because}",
            found_in=str(file),
            remedy="name a file that exists"
            if isinstance(error, FileNotFoundError)
            else "write the file by numpy.savez(file, x=array), or by numpy.save(file, array)",
        ) from error


def _fit(array: Tensor, taken: SessionTensor | None) -> Tensor:
    """Return an array as `edgepack build` reads samples: floats in the input's precision, integers
    in its width, and a batch axis of 1 in front where it lacks one.

    Raises:
        ValueError: A value does not fit into the input's dtype.
    """
    if taken is None:
        return array
    want = np.dtype(taken.dtype)
    if array.dtype != want and array.dtype.kind in {"f": "f", "i": "iu", "u": "iu"}.get(
        want.kind, ""
    ):
        with np.errstate(over="ignore"):
            fitted = array.astype(want)
        if not np.array_equal(np.isfinite(fitted), np.isfinite(array)) or (
            want.kind != "f" and not np.array_equal(fitted, array)
        ):
            raise ValueError(f"values of {taken.name!a:.100} do not fit into {want.name}")
        array = fitted
    lacks_batch = array.ndim + 1 == len(taken.shape) and not (
        isinstance(taken.shape[0], int) and taken.shape[0] > 1
    )
    return array[np.newaxis] if lacks_batch else array


def _describe(inputs: tuple[SessionTensor, ...]) -> str:
    shapes = (
        f"{one.name}: {one.dtype} [{', '.join(str(size) or '?' for size in one.shape)}]"
        for one in inputs
    )
    return "; ".join(shapes)


def _shown(name: str, value: Tensor) -> OutputValues:
    array = np.asarray(value)
    first = array.ravel()[:MAX_SHOWN].tolist()
    return OutputValues(
        name=name,
        dtype=str(array.dtype),
        shape=array.shape,
        values=[None if isinstance(one, float) and not np.isfinite(one) else one for one in first],
    )

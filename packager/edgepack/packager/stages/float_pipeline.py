"""The float pipeline on the build host: expected outputs, and what each graph is given."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from edgepack.agent.generation.completions import Completer
from edgepack.agent.runtime.opening import open_model_file
from edgepack.agent.runtime.pipelines import PipelineSession
from edgepack.agent.runtime.provider_table import CPU_PROVIDER
from edgepack.agent.runtime.sessions import Session, SessionTensor
from edgepack.bundle.chunks import read_bounded
from edgepack.bundle.generation import TOKENIZER
from edgepack.bundle.golden_pictures import SOUND_SUFFIX
from edgepack.bundle.plain_arrays import encode_arrays, read_arrays
from edgepack.durable import write_file
from edgepack.errors import BuildError, DeviceError, PictureError, SoundError
from edgepack.packager.progress import BuildStep, Progress
from edgepack.packager.samples.files import RANDOM_PREFIX
from edgepack.packager.samples.prompts import SUFFIX, read_texts
from edgepack.packager.stages.cache_check import check_caches
from edgepack.packager.stages.fixed_stages import CroppedSession, FixedStage
from edgepack.packager.stages.pipeline_file import PipelineSource, StageSource
from edgepack.packager.stages.stage_shapes import (
    LargestInputs,
    check_fixed,
    check_shapes,
    format_sizes,
    sizes_differ,
)
from edgepack.pictures.prepare import load_page
from edgepack.sound.features import prepare_start
from edgepack.sound.waves import Sound, open_sound
from edgepack.stages.running import Record, Spec, specs_of
from edgepack.stages.wiring import Resize, StageWiring, Wiring
from edgepack.tasks.arrays import Outputs, Tensor
from edgepack.tasks.inputs import PromptInput, SoundInput

_PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".ppm", ".tif", ".tiff", ".gif")
ANSWER_SUFFIX = ".txt"
"""Of a file with the right text of the sound of the same name."""
_MOST_ANSWER_BYTES = 1_000_000
_FEWEST = 4
_MOST_A_STAGE = 160
"""Inferences of a graph that its ranges and its search use; more tell little more."""
_MOST_STAGE_BYTES = 512 * 1024 * 1024
"""Bytes of these inferences' inputs, but for four: caches of long sounds are large."""

_MOST_CHECKED = 3
"""Samples with which caches are checked: a text may end before its cache is used."""

_TEXT = "the tokens so far"
"""Name of what the host gives to a decoder that is repeated."""

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


class FloatPipeline:
    """The float graphs of a pipeline, on ONNX Runtime's CPU provider.

    Args:
        source: The pipeline.

    Raises:
        BuildError: A graph cannot run, or two nodes do not fit each other.
    """

    def __init__(self, source: PipelineSource) -> None:
        self._source = source
        self._graphs: dict[str, Session] = {}
        for stage in source.stages:
            try:
                self._graphs[stage.name] = open_model_file(stage.path)
            except DeviceError as error:
                raise BuildError(
                    f"stage '{stage.name}' does not run: {error.problem}",
                    found_in=str(stage.given),
                    remedy=error.remedy,
                ) from error
        _check_joints(source, self._graphs)
        self.session = PipelineSession(source.wiring, self._graphs, CPU_PROVIDER)
        self.largest = LargestInputs(source.stages)

    def check_fixed(self, stage: StageSource, profile: str) -> None:
        """Check that a profile with fixed shapes finds those of a stage; see `check_fixed`."""
        check_fixed(stage, self._graphs[stage.name].inputs, profile)

    def run(
        self, samples: Sequence[Mapping[str, Tensor]], what: str, progress: Progress
    ) -> tuple[Outputs, ...]:
        """Return the outputs for samples."""
        made = []
        for number, feeds in enumerate(samples):
            made.append(self._run(self.session, feeds, self.largest.note))
            progress(BuildStep(what=what, done=number + 1, total=len(samples)))
        return tuple(made)

    def record(
        self,
        folders: Mapping[str, Path],
        samples: Sequence[Mapping[str, Tensor]],
        fixed: FixedStage | None = None,
    ) -> None:
        """Write what graphs are given for samples, an `.npz` file each.

        Args:
            folders: By stage its folder, which is created; at most `_MOST_A_STAGE` files, evenly
                from all.
            samples: Inputs of the pipeline.
            fixed: A single stage with fixed shapes; None with free ones.
        """
        session = self.session
        if fixed is not None:
            (stage,) = folders
            shapes = next(one.shapes for one in self._source.stages if one.name == stage)
            cropped = CroppedSession(self._graphs[stage], shapes, fixed.mask)
            graphs = {**self._graphs, stage: cropped}
            session = PipelineSession(self._source.wiring, graphs, CPU_PROVIDER)
        for folder in folders.values():
            folder.mkdir(parents=True)
        thinned = {name: _Thinned(folder) for name, folder in folders.items()}

        def note(name: str, given: Mapping[str, Tensor]) -> None:
            if name in thinned:
                thinned[name].add(given)

        for feeds in samples:
            self._run(session, feeds, note)

    def check_caches(self, samples: Sequence[Mapping[str, Tensor]]) -> None:
        """Check that each decoder with a cache continues the texts of its decoder.

        Raises:
            BuildError: It does not, or the pipeline does not run on a sample.
        """
        for feeds in samples[:_MOST_CHECKED]:
            with self._as_build_error():
                check_caches(self._source, self._graphs, feeds)

    def _run(
        self,
        session: PipelineSession,
        feeds: Mapping[str, Tensor],
        record: Record | None = None,
    ) -> Outputs:
        with self._as_build_error():
            return session.run(feeds, record)

    @contextmanager
    def _as_build_error(self) -> Iterator[None]:
        try:
            yield
        except (DeviceError, ValueError) as error:
            raise BuildError(
                f"the float pipeline does not run on a sample: {error}",
                found_in=str(self._source.path),
            ) from error


class _Thinned:
    """Files of what a graph is given, evenly from all inferences, `_MOST_A_STAGE` at most, and
    `_MOST_STAGE_BYTES`.
    """

    def __init__(self, folder: Path) -> None:
        self.kept: list[int] = []
        self._folder = folder
        self._step = 1
        self._count = 0

    def add(self, given: Mapping[str, Tensor]) -> None:
        """Write an inference's tensors, or leave the inference out."""
        number, self._count = self._count, self._count + 1
        if number % self._step:
            return
        content = encode_arrays(given)
        write_file(self._path(number), content, lasting=False)
        self.kept.append(number)
        most = max(min(_MOST_A_STAGE, _MOST_STAGE_BYTES // len(content)), _FEWEST)
        while len(self.kept) > most:
            self._step *= 2
            for one in self.kept[1::2]:
                self._path(one).unlink()
            self.kept = self.kept[::2]

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:08}.npz"


def _check_joints(source: PipelineSource, graphs: Mapping[str, Session]) -> None:
    """Check dtypes and shapes of tensors between stages, and from steps to stages.

    Raises:
        BuildError: A graph takes another dtype, rank or size than is given.
    """
    outputs = {
        name: {one.name: (one.dtype, one.shape) for one in graph.outputs}
        for name, graph in graphs.items()
    }
    specs = specs_of(source.wiring, outputs)
    known: dict[str, Spec] = {
        one.output: ("float32", (1, 3, "", ""))
        for one in source.wiring.steps
        if isinstance(one, Resize)
    }
    known |= {**specs, _TEXT: ("int64", (1, ""))}
    for stage in source.wiring.stages:
        cached = _find_cached(source.wiring, stage, outputs)
        known |= cached
        for one in graphs[stage.name].inputs:
            tensor = stage.inputs.get(one.name, one.name if one.name in cached else _TEXT)
            if tensor not in known:
                continue
            dtype, shape = known[tensor]
            if dtype != one.dtype or sizes_differ(shape, one.shape):
                raise BuildError(
                    f"the tensor '{tensor}' is {dtype} {format_sizes(shape)}, and input "
                    f"'{one.name}' of stage '{stage.name}' takes {one.dtype} "
                    f"{format_sizes(one.shape)}",
                    found_in=str(source.path),
                    remedy="wire a tensor of the same type and shape, or export one of the graphs "
                    "again",
                )
        given = {name: known[one][1] for name, one in stage.inputs.items() if one in known}
        (graph,) = (one for one in source.stages if one.name == stage.name)
        check_shapes(source.path, graph, graphs[stage.name].inputs, given)


def _find_cached(
    wiring: Wiring, stage: StageWiring, outputs: Mapping[str, Mapping[str, Spec]]
) -> dict[str, Spec]:
    """Return what the loop of another stage first gives to a graph, by the graph's input."""
    return {
        name: outputs[other.name][own]
        for other in wiring.stages
        if wiring.continuing(other) is stage and other.loop and other.loop.cache
        for name, own in other.loop.cache.first.items()
        if own in outputs[other.name]
    }

"""Reader of a `pipeline.toml`: stages, host steps, and variants by stage."""

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import onnx

from edgepack.decoding import convert_value, decode_toml
from edgepack.errors import BuildError, parse_problem
from edgepack.packager.source.model import read_graph
from edgepack.packager.stages.described_texts import DescribedTexts
from edgepack.packager.stages.encoder_decoder import (
    CONFIG,
    check_complete,
    describe_folder,
    is_encoder_decoder,
    read_settings,
)
from edgepack.packager.stages.merged_decoder import MERGED
from edgepack.packager.stages.prompts import find_prompts
from edgepack.packager.stages.speech import find_speech
from edgepack.stages.loops import Cache, Loop, StageName, TensorName
from edgepack.stages.wiring import (
    KINDS,
    MAX_ENDS,
    MAX_STAGES,
    MAX_STEPS,
    Ctc,
    Dtype,
    PipelineInput,
    StageWiring,
    Step,
    Wiring,
    WiringError,
    check_pictures,
    find_lists,
)
from edgepack.tasks.contract import LOSS
from edgepack.tasks.description import TaskOutputs
from edgepack.tasks.table import NAMES
from edgepack.tasks.transcript.measure import NAME as TRANSCRIPT
from edgepack.tasks.transcript.words import TokenSettings
from edgepack.toml_errors import describe_type_error

PIPELINE_FILE = "pipeline.toml"
FLOAT_PROFILE = "fp32"
_MOST_BYTES = 4 * 1024 * 1024
_CHARACTERS = "character"
"""Key of a graph's metadata: the characters of a recognizer, as Paddle's exporter writes them."""


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the sections."""


class PipelineSection(_Section, frozen=True, kw_only=True):
    """`[pipeline]`: outputs of the pipeline, and how its variants are judged.

    Attributes:
        outputs: Tensors that the pipeline gives, in the order of their roles in the task.
        task: Task of the outputs.
        keep: Least share of the float pipeline's result, from its inputs to its outputs.
    """

    outputs: tuple[TensorName, ...]
    task: str = "pages"
    keep: Annotated[float, msgspec.Meta(ge=0, le=1)] = 1.0 - LOSS


class InputSection(_Section, frozen=True, kw_only=True):
    """`[inputs.NAME]`: see `PipelineInput`."""

    kind: Literal["picture", "tensor"] = "picture"
    dtype: Dtype | None = None
    shape: tuple[int | str, ...] | None = None


class StageSection(_Section, frozen=True, kw_only=True):
    """`[[stage]]`: a graph.

    Attributes:
        name: Name of the stage.
        model: ONNX file, relative to the pipeline's file.
        inputs, outputs: Tensor by input or output of the graph; by default the same name. A graph
            that continues a loop has no outputs.
        shape: Shapes of inputs for profiles that need fixed ones, by input of the graph.
        loop: See `Loop`.
    """

    name: StageName
    model: str
    inputs: dict[str, TensorName] = {}
    outputs: dict[str, TensorName] = {}
    shape: dict[str, tuple[Annotated[int, msgspec.Meta(ge=1)], ...]] = {}
    loop: Loop | None = None


class VariantSection(_Section, frozen=True, kw_only=True):
    """`[[variant]]`: a profile for each stage.

    Attributes:
        name: Name of the variant.
        stages: Profile by stage: a name, or a path relative to the pipeline's file.
        others: Profile of the other stages.
    """

    name: str
    stages: dict[StageName, str] = {}
    others: str = FLOAT_PROFILE


class _File(_Section, frozen=True, kw_only=True):
    pipeline: PipelineSection
    inputs: dict[str, InputSection]
    stage: tuple[StageSection, ...]
    step: tuple[Step, ...] = ()
    variant: tuple[VariantSection, ...] = ()


class StageSource(msgspec.Struct, frozen=True, kw_only=True):
    """Graph of a stage.

    Attributes:
        name: Name of the stage.
        path: Its file.
        given: The user's file that has the graph.
        shapes: See `StageSection.shape`.
    """

    name: str
    path: Path
    given: Path
    shapes: dict[str, tuple[int, ...]]


class PipelineSource(msgspec.Struct, frozen=True, kw_only=True):
    """A pipeline as its file describes it, with every file found.

    Attributes:
        path: The pipeline's file.
        wiring: Stages and steps.
        stages: Graphs in the wiring's order.
        part: Task of the outputs.
        keep: See `PipelineSection`.
        variants: See `VariantSection`.
        texts: How a sound or a text becomes an input, and tokens a text; None for other pipelines.
        notes: Facts about the pipeline for a person.
    """

    path: Path
    wiring: Wiring
    stages: tuple[StageSource, ...]
    part: TaskOutputs
    keep: float
    variants: tuple[VariantSection, ...]
    texts: DescribedTexts | None = None
    notes: tuple[str, ...] = ()


def find_pipeline(model: Path) -> Path | None:
    """Return the pipeline's file that a path names, itself or in the folder; None for a model.

    Raises:
        BuildError: A folder of Optimum lacks a file.
    """
    if model.is_dir() and (model / PIPELINE_FILE).is_file():
        return model / PIPELINE_FILE
    if model.is_dir() and is_encoder_decoder(model):
        check_complete(model)
        return model
    return model if model.suffix == ".toml" else None


def read_pipeline(path: Path, work: Path) -> PipelineSource:
    """Read and check a pipeline's file; the graphs are only looked at for their names.

    Args:
        path: The file, or a folder of Optimum.
        work: Receives graphs that are made of a file; must stay as long as they are used.

    Raises:
        BuildError: A key, a step, a stage's file or a tensor is wrong; the error names it.
    """
    document = _read_document(path, work)
    if path.is_dir():
        path /= CONFIG
    file = _convert(document, path)
    if file.pipeline.task not in NAMES:
        raise BuildError(
            f"there is no task '{file.pipeline.task}'",
            found_in=f"{path}, [pipeline] task",
            remedy=f"one of {', '.join(NAMES)}",
        )
    most = {"inputs": MAX_ENDS, "stage": MAX_STAGES, "step": MAX_STEPS, "variant": MAX_STAGES}
    for name, limit in most.items():
        count = len(getattr(file, name))
        if count > limit or (not count and name in ("inputs", "stage")):
            raise BuildError(
                f"the pipeline has {count} of [{name}], and takes 1 to {limit}", found_in=str(path)
            )
    stages, wired = [], []
    loops = [one.loop for one in file.stage if one.loop is not None]
    caches = {one.cache.stage: (one, one.cache) for one in loops if one.cache is not None}
    for section in file.stage:
        source = path.parent / section.model
        model = _open_graph(source, section.name, path)
        wired.append(_wire(section, model, caches.get(section.name), path))
        given = path.parent / MERGED if source.parent == work.absolute() else source
        stages.append(
            StageSource(name=section.name, path=source, given=given, shapes=section.shape)
        )
    wiring = Wiring(
        inputs=tuple(_input(name, one, path) for name, one in file.inputs.items()),
        outputs=file.pipeline.outputs,
        stages=tuple(wired),
        steps=file.step,
    )
    try:
        find_lists(wiring)
        check_pictures(wiring)
    except WiringError as error:
        raise BuildError(str(error), found_in=str(path), remedy=error.remedy) from error
    steps = tuple(
        _with_characters(step, wiring, stages, path) if isinstance(step, Ctc) else step
        for step in wiring.steps
    )
    texts: DescribedTexts | None = None
    notes: list[str] = []
    if path.name == CONFIG:
        for find in (find_speech, find_prompts):
            found, note = find(path.parent, read_settings(path), wiring)
            texts = texts or found
            notes += filter(None, [note])
    return PipelineSource(
        path=path,
        wiring=msgspec.structs.replace(wiring, steps=steps),
        stages=tuple(stages),
        part=TaskOutputs(
            task=file.pipeline.task,
            outputs=file.pipeline.outputs,
            source="declared",
            settings=_settings(file.pipeline, wiring, path),
        ),
        keep=file.pipeline.keep,
        variants=file.variant,
        texts=texts,
        notes=tuple(notes),
    )


def _settings(section: PipelineSection, wiring: Wiring, path: Path) -> dict[str, Any]:
    """Return the settings of the task: the tokens of a decoder that are no text.

    Raises:
        BuildError: A transcript is not the text of a decoder.
    """
    if section.task != TRANSCRIPT:
        return {}
    loops = {tensor: one.loop for one in wiring.stages if one.loop for tensor in one.writes}
    found = [loops.get(tensor) for tensor in section.outputs]
    if len(found) != 1 or found[0] is None:
        raise BuildError(
            f"a transcript is the text of one decoder, and outputs are {list(section.outputs)}",
            found_in=f"{path}, [pipeline] outputs",
            remedy=f"name one of {', '.join(loops)}" if loops else "give a stage a loop",
        )
    loop = found[0]
    last = () if loop.last is None else (loop.last,)
    silent = {*loop.start, *loop.choices, *loop.end, *last}
    return TokenSettings.of_tokens(set(), silent).as_settings


def _read_document(path: Path, work: Path) -> Any:
    """Return the content of a pipeline's file, or what describes a folder of Optimum.

    Raises:
        BuildError: The file cannot be read.
    """
    if path.is_dir():
        return describe_folder(path, work)
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise BuildError(f"the file has more than {_MOST_BYTES} bytes", found_in=str(path))
        return decode_toml(path.read_bytes())
    except OSError as error:
        raise BuildError(
            f"cannot read the pipeline: {error.strerror}",
            found_in=str(path),
            remedy=f"name a {PIPELINE_FILE}, or a folder that has one",
        ) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BuildError(
            f"a pipeline is not valid TOML: {parse_problem(error)}", found_in=str(path)
        ) from error


def _convert(document: Any, path: Path) -> _File:
    _check_kinds(document, path)
    try:
        return convert_value(document, _File)
    except msgspec.ValidationError as error:
        found = describe_type_error(error, document, _File)
        raise BuildError(
            found.problem,
            found_in=f"{path}, {found.place}" if found.place else str(path),
            remedy=found.remedy,
        ) from error


def _check_kinds(document: Any, path: Path) -> None:
    found = document.get("step") if isinstance(document, dict) else None
    steps: list[Any] = found if isinstance(found, list) else []
    for number, step in enumerate(steps):
        kind = step.get("kind") if isinstance(step, dict) else None
        if kind not in KINDS:
            raise BuildError(
                f"there is no host step {kind!r}",
                found_in=f"{path}, step {number + 1} of {len(steps)}",
                remedy=f"kind is one of {', '.join(KINDS)}",
            )


def _open_graph(source: Path, stage: str, path: Path) -> onnx.ModelProto:
    """Return the graph of a stage without its weights.

    Raises:
        BuildError: The file is missing or is no ONNX file.
    """
    if not source.is_file():
        raise BuildError(
            f"stage '{stage}' has no file {source.name}: {source} does not exist",
            found_in=f"{path}, [[stage]] {stage}",
            remedy="give the path relative to the pipeline's file",
        )
    try:
        return read_graph(source)
    except BuildError as error:
        error.problem = f"stage '{stage}': {error.problem}"
        raise


def _wire(
    section: StageSection,
    model: onnx.ModelProto,
    continued: tuple[Loop, Cache] | None,
    path: Path,
) -> StageWiring:
    """Return the wiring of a graph.

    Args:
        section: The stage.
        model: Its graph.
        continued: The loop that the graph continues, and its cache; None for another graph.
        path: The pipeline's file.

    Raises:
        BuildError: A name is not in the graph.
    """
    stored = {one.name for one in model.graph.initializer}
    given = {
        "input": [one.name for one in model.graph.input if one.name not in stored],
        "output": [one.name for one in model.graph.output],
    }
    for kind, named in (("input", section.inputs), ("output", section.outputs)):
        for name in named:
            if name not in given[kind]:
                raise BuildError(
                    f"the graph of stage '{section.name}' has no {kind} '{name}'",
                    found_in=f"{path}, [[stage]] {section.name}, {kind}s",
                    remedy=f"its {kind}s are {', '.join(given[kind])}",
                )
    loop = section.loop or (continued[0] if continued else None)
    by_loop = () if loop is None else (loop.tokens, *(continued[1].first if continued else ()))
    fixed = {
        one.name: one.type.tensor_type.shape.dim[0].dim_value
        for one in model.graph.input
        if one.type.tensor_type.shape.dim
    }
    for name in by_loop:
        if name in section.inputs:
            raise BuildError(
                f"input '{name}' of stage '{section.name}' is given twice: its loop gives it",
                found_in=f"{path}, [[stage]] {section.name}, inputs",
                remedy=f"remove {name} there",
            )
        if loop and 0 < fixed.get(name, 0) < loop.beams:
            raise BuildError(
                f"the loop of stage '{section.name}' follows {loop.beams} texts at a time, and "
                f"input '{name}' takes {fixed[name]}",
                found_in=f"{path}, [[stage]] {section.name}",
                remedy="export the graph with a free first axis, or set beams (num_beams) to 1",
            )
        if name not in given["input"]:
            raise BuildError(
                f"the graph of stage '{section.name}' has no input '{name}', which its loop gives",
                found_in=f"{path}, [[stage]] {section.name}, loop",
                remedy=f"its inputs are {', '.join(given['input'])}",
            )
    cache = section.loop.cache if section.loop else None
    kept = {"first": cache.first if cache else {}, "next": continued[1].next if continued else {}}
    for key, states in kept.items():
        for name in states.values():
            if name not in given["output"]:
                raise BuildError(
                    f"the graph of stage '{section.name}' has no output '{name}', which a cache "
                    "keeps",
                    found_in=f"{path}, [[stage]] {section.name}, loop.cache.{key}",
                    remedy=f"its outputs are {', '.join(given['output'])}",
                )
    if section.loop is not None:
        _check_tokens(section, section.loop, model, path)
    named = {name: section.inputs.get(name, name) for name in given["input"]}
    inputs = {name: tensor for name, tensor in named.items() if name not in by_loop}
    outputs = section.outputs or {name: name for name in given["output"]}
    if continued is not None:
        outputs = section.outputs
    return StageWiring(name=section.name, inputs=inputs, outputs=outputs, loop=section.loop)


def _check_tokens(section: StageSection, loop: Loop, model: onnx.ModelProto, path: Path) -> None:
    """Check that the logits of a decoder have the tokens that begin and end a text.

    Raises:
        BuildError: A token is not among the classes of the logits.
    """
    kinds = {one.name: one.type.tensor_type for one in model.graph.output}
    for name in section.outputs or kinds:
        dims = kinds[name].shape.dim
        classes = dims[-1].dim_value if dims else 0
        first = (*loop.start, *loop.choices)
        words = {token for one in loop.suppress_texts for token in one}
        for key, at, tokens in (
            ("start", " at its start", first),
            ("end", " at its end", loop.end),
            ("last", " at its end", () if loop.last is None else (loop.last,)),
            ("suppress_texts", " that it never has", words),
        ):
            if classes and max(tokens, default=0) >= classes:
                raise BuildError(
                    f"a text of stage '{section.name}' has the token {max(tokens)}{at}, "
                    f"and '{name}' has {classes} classes: 0 to {classes - 1}",
                    found_in=f"{path}, [[stage]] {section.name}, loop.{key}",
                    remedy="state the tokens of this model: decoder_start_token_id, eos_token_id, "
                    "forced_eos_token_id and bad_words_ids in generation_config.json, or the keys "
                    "of loop",
                )


def _input(name: str, section: InputSection, path: Path) -> PipelineInput:
    if section.kind == "picture":
        return PipelineInput(name=name)
    if section.dtype is None or section.shape is None:
        raise BuildError(
            f"input '{name}' is a tensor without dtype and shape",
            found_in=f"{path}, [inputs.{name}]",
            remedy='dtype = "float32", shape = [1, 80, "frames"]',
        )
    return PipelineInput(name=name, kind="tensor", dtype=section.dtype, shape=section.shape)


def _with_characters(step: Ctc, wiring: Wiring, stages: list[StageSource], path: Path) -> Ctc:
    """Return a step with the characters of its graph's metadata, where the file lists none.

    Raises:
        BuildError: There are none, or another number than classes.
    """
    stage = next((one for one in wiring.stages if step.input in one.writes), None)
    if stage is None:
        raise BuildError(
            f"{step.words} reads text, and '{step.input}' is not the output of a stage",
            found_in=str(path),
            remedy="name the output of the recognizer",
        )
    source = next(one for one in stages if one.name == stage.name)
    model = onnx.load(source.path, load_external_data=False)
    name = next(key for key, tensor in stage.outputs.items() if tensor == step.input)
    shape = next(one for one in model.graph.output if one.name == name).type.tensor_type.shape
    classes = shape.dim[-1].dim_value if shape.dim else 0
    characters = step.characters
    if not characters:
        told = {one.key: one.value for one in model.metadata_props}.get(_CHARACTERS, "")
        characters = tuple(filter(None, told.split("\n")))
        if classes == len(characters) + 2:
            characters = (*characters, " ")
    if not characters or (classes and len(characters) + 1 != classes):
        raise BuildError(
            f"{step.words} has {len(characters)} characters, and output '{name}' of stage "
            f"'{stage.name}' has {classes or 'an open number of'} classes: a blank, and a class "
            "for each character",
            found_in=f"{path}, [[step]] ctc",
            remedy='list the characters in their order, characters = ["a", "b"], or write '
            f"them to the metadata '{_CHARACTERS}' of the model, one a line",
        )
    return msgspec.structs.replace(step, characters=characters)

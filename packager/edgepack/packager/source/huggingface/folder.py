"""A local Hugging Face model folder as the source: exported to ONNX, then built.

Only the folder's content is used: no network, no code from the folder.
"""

import json
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from msgspec.structs import replace

from edgepack.agent.runtime.child import run_child
from edgepack.errors import BuildError
from edgepack.packager.progress import BuildStep, Progress
from edgepack.packager.source.decoders.build import is_decoder_folder, open_decoder
from edgepack.packager.source.encoders import find_encoder
from edgepack.packager.source.fixed_inputs import Numbers
from edgepack.packager.source.model import SourceModel, load_source
from edgepack.packager.source.stated_facts import combine, read_model_card
from edgepack.python_child import python_command
from edgepack.tasks.description import MAX_CLASS_NAME, MAX_CLASS_NAMES, TaskOutputs
from edgepack.tasks.level import THRESHOLD
from edgepack.text import printable

EXTRA = "huggingface"
CONFIG = "config.json"
COMMAND = python_command("edgepack.packager.source.huggingface.export")

_OPSET = 17
"""Old enough for every profile; LayerNormalization is one operator from here on."""

_NEEDED = ("optimum-onnx", "torch")
_CLASSIFIERS = ("ForImageClassification", "ForSequenceClassification")
_LOGITS = "logits"
_TIMEOUT_S = 3600.0
_MANUAL = "optimum-cli export onnx --model {folder} --task TASK OUT, then edgepack build OUT/…"


def open_source(
    model: Path,
    shapes: Mapping[str, tuple[int, ...]],
    values: Mapping[str, Numbers],
    work: Path,
    progress: Progress,
    *,
    context: int | None = None,
) -> SourceModel:
    """Load the source model; a Hugging Face model folder is exported first.

    Args:
        model: An `.onnx` file, or a model folder.
        shapes, values: See `load_source`.
        work: Folder for the exported model, which must stay as long as the source is used.
        progress: Called when the export begins.
        context: Tokens of a text, for a decoder; None for as many as the model takes.

    Raises:
        BuildError: The model cannot be exported, or cannot be built.
    """
    if is_decoder_folder(model):
        folder = work / "exported"
        source = open_decoder(model, folder, progress, shapes, values, context=context)
        stated = combine(read_model_card(model), source.stated)
        return replace(source, folder=model, stated=stated)
    if context is not None:
        raise BuildError(
            "a context was given, and the model is not a folder with a decoder of texts",
            found_in=str(model),
            remedy="leave --context out",
        )
    if not is_model_folder(model):
        return _with_folder(load_source(model, shapes, values), _folder_of(model))
    exported, note = export_folder(model, work / "exported", progress)
    source = load_source(exported, shapes, values)
    stated = combine(read_model_card(model), source.stated)
    return _with_folder(replace(source, notes=(note, *source.notes), stated=stated), model)


def _folder_of(model: Path) -> Path:
    """Return the folder of a model's file; sentence-transformers keeps the file in `onnx/`."""
    folder = model.parent
    above = folder.resolve().parent
    is_below = folder.resolve().name == "onnx" and not (folder / CONFIG).is_file()
    return above if is_below and (above / CONFIG).is_file() else folder


def _with_folder(source: SourceModel, folder: Path) -> SourceModel:
    """Return the model with its Hugging Face folder, and the task and names that the folder states.

    A classifier's only output gives `logits`: classes that exclude each other, or scores for each.
    """
    config = _read_config(folder)
    if not config.get("model_type"):
        return source
    source = replace(source, folder=folder, labels=_read_labels(config))
    encoder, said = find_encoder(folder, source.inputs, source.outputs)
    source = replace(source, encoder=encoder, notes=(*source.notes, *([said] if said else [])))
    if encoder is not None:
        output = encoder.described.output
        return source.with_parts(
            TaskOutputs(task="embedding", outputs=(output,), source="metadata")
        )
    architectures = config.get("architectures")
    named = architectures[:1] if isinstance(architectures, list) else []
    is_classifier = any(str(name).endswith(_CLASSIFIERS) for name in named)
    is_classifier = is_classifier and len(source.labels) > 1
    if not is_classifier or [spec.name for spec in source.outputs] != [_LOGITS]:
        return source
    is_of_each = config.get("problem_type") == "multi_label_classification"
    part = TaskOutputs(
        task="threshold" if is_of_each else "classification",
        outputs=(_LOGITS,),
        source="metadata",
        settings={THRESHOLD: 0.0} if is_of_each else {},
    )
    return source.with_parts(part)


def _read_labels(config: Mapping[str, object]) -> tuple[str, ...]:
    """Return the names of classes; () if unreadable, or not one for each class.

    Classes may share a name: the 1,000 classes of ImageNet have two cranes.
    """
    found = config.get("id2label")
    if not isinstance(found, dict) or len(found) > MAX_CLASS_NAMES:
        return ()
    names = [found.get(str(number)) for number in range(len(found))]
    if not all(isinstance(name, str) for name in names):
        return ()
    return tuple(printable(" ".join(str(name).split()))[:MAX_CLASS_NAME] for name in names)


def is_model_folder(path: Path) -> bool:
    """Return True if a path is a folder with a Hugging Face model: `config.json` names its type.

    A folder that also holds ONNX files is not exported: the user means an ONNX file.
    """
    if not path.is_dir() or any(path.glob("*.onnx")):
        return False
    return bool(_read_config(path).get("model_type"))


def export_folder(
    folder: Path, output: Path, progress: Progress, *, command: tuple[str, ...] = COMMAND
) -> tuple[Path, str]:
    """Export a Hugging Face model folder to ONNX in a child process.

    Args:
        folder: The model folder.
        output: Target folder; must not exist.
        progress: Called when the export begins.
        command: The child.

    Returns:
        The `.onnx` file, and a sentence on the export.

    Raises:
        BuildError: The extra is missing, the folder names no architecture, the export failed, or
            the export gave several models.
    """
    architecture = _architecture(folder)
    versions = _versions(folder)
    progress(BuildStep(what=f"exporting {folder.name} to ONNX"))
    request = {
        "folder": str(folder.resolve()),
        "output": str(output.resolve()),
        "architecture": architecture,
        "opset": _OPSET,
        "timeout_s": _TIMEOUT_S,
    }
    ending = run_child(command, json.dumps(request).encode(), timeout_s=_TIMEOUT_S)
    answer = json.loads(ending.answer) if ending.answer is not None else {}
    if "task" not in answer:
        because = answer.get("problem") or f"the process {ending.because}"
        raise BuildError(
            f"optimum-onnx cannot export {architecture}: {because}",
            found_in=str(folder),
            remedy=_MANUAL.format(folder=folder),
        )
    return _only_model(folder, output), (
        f"Exported from the Hugging Face folder {folder.name}: {architecture}, task "
        f"{answer['task']}, opset {_OPSET}, {versions}."
    )


def _read_config(folder: Path) -> dict[str, object]:
    try:
        config = json.loads((folder / CONFIG).read_bytes())
    except (OSError, ValueError):
        return {}
    return config if isinstance(config, dict) else {}


def _architecture(folder: Path) -> str:
    architectures = _read_config(folder).get("architectures")
    if not isinstance(architectures, list) or len(architectures) != 1:
        raise BuildError(
            "the Hugging Face folder does not name one architecture",
            found_in=f"{folder / CONFIG}, architectures",
            remedy='save it with save_pretrained, or add e.g. "architectures": ["BertModel"]',
        )
    return str(architectures[0])


def _versions(folder: Path) -> str:
    try:
        return ", ".join(f"{name} {metadata.version(name)}" for name in _NEEDED)
    except metadata.PackageNotFoundError as error:
        raise BuildError(
            f"'{folder.name}' is a Hugging Face model folder: exporting it needs the package "
            f"{error.name}, which is not installed",
            found_in=str(folder),
            remedy=f"pip install 'edgepack[{EXTRA}]', or export it elsewhere and give the .onnx "
            "file",
        ) from error


def _only_model(folder: Path, output: Path) -> Path:
    models = sorted(output.glob("*.onnx"))
    if len(models) == 1:
        return models[0]
    names = ", ".join(path.name for path in models) or "no model"
    raise BuildError(
        f"the folder exports as {len(models)} models: {names}; a bundle carries one",
        found_in=str(folder),
        remedy=f"export with {_MANUAL.format(folder=folder)}, each a bundle of its own",
    )

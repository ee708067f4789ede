"""Description of a model's outputs before a build, equal to a build's description."""

from pathlib import Path

from msgspec.structs import replace

from edgepack.packager.pipeline.build_samples import open_build_samples
from edgepack.packager.pipeline.open_model import open_model
from edgepack.packager.pipeline.request import BuildRequest
from edgepack.packager.progress import Progress
from edgepack.packager.tasks.findings import LOOKED_AT
from edgepack.packager.tasks.possible import possible_of
from edgepack.tasks.description import GUESSED_FROM, UNKNOWN, ModelDescription, TaskOutputs
from edgepack.tasks.doubts.meaning import MAY_BE, QUANTITIES


def describe_model(
    model: Path, calibration: str, work: Path, progress: Progress
) -> tuple[ModelDescription, dict[str, tuple[str, ...]], bool]:
    """Describe the outputs of a model by its graph and by its values on samples.

    Args:
        model: The ONNX file, or a local Hugging Face model folder.
        calibration: Samples, see `open_samples`.
        work: Folder for files that are written on the way.
        progress: Called for each step.

    Returns:
        The description without doubtful guesses; by name of each other output the tasks that fit,
        a guess first; and whether the samples are arrays, which need no preparation.

    Raises:
        BuildError: The model or the samples cannot be used.
    """
    request = BuildRequest(
        model=model,
        output=work / "described",
        name="described",
        version="0",
        release=0,
        profiles=(),
        key="",
        calibration=calibration,
    )
    source = open_model(request, (), work, progress)
    samples = open_build_samples(request, source, (), work, progress)
    held_out = samples.split.held_out
    description = held_out.description.without(source.watched)
    outputs = [samples.float_source(feeds) for feeds in held_out.spread(LOOKED_AT)]
    asked = [part for part in description.parts if _is_doubtful(part)]
    kept = tuple(part for part in description.parts if part not in asked)
    possible = {}
    for part in asked:
        for name in part.outputs:
            fit = possible_of(outputs, name)
            possible[name] = tuple(sorted(fit, key=part.task.__ne__))
    are_arrays = samples.are_real and held_out.pictures_of is None
    return replace(description, parts=kept), possible, are_arrays


def _is_doubtful(part: TaskOutputs) -> bool:
    """Return whether nothing shows the task of outputs, or a build calls the task a guess."""
    is_unknown = part.task == UNKNOWN and part.source == "unknown"
    is_guess = part.settings.get(MAY_BE) == QUANTITIES or GUESSED_FROM in part.settings
    return is_unknown or is_guess

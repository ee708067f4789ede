"""Description of a model's outputs before a build, equal to a build's description."""

from pathlib import Path

from edgepack.packager.pipeline.build_samples import open_build_samples
from edgepack.packager.pipeline.open_model import open_model
from edgepack.packager.pipeline.request import BuildRequest
from edgepack.packager.progress import Progress
from edgepack.packager.tasks.findings import LOOKED_AT
from edgepack.packager.tasks.possible import possible_of
from edgepack.tasks.description import UNKNOWN, ModelDescription


def describe_model(
    model: Path, calibration: str, work: Path, progress: Progress
) -> tuple[ModelDescription, dict[str, tuple[str, ...]]]:
    """Describe the outputs of a model by its graph and by its values on samples.

    Args:
        model: The ONNX file, or a local Hugging Face model folder.
        calibration: Samples, see `open_samples`.
        work: Folder for files that are written on the way.
        progress: Called for each step.

    Returns:
        The description, and by name of each output without a known meaning the tasks that fit.

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
    names = description.outputs_of(UNKNOWN)
    return description, {name: possible_of(outputs, name) for name in names}

"""Description of a model's outputs before a build, equal to a build's description."""

from pathlib import Path

from edgepack.packager.pipeline.build_samples import open_build_samples
from edgepack.packager.pipeline.open_model import open_model
from edgepack.packager.pipeline.request import BuildRequest
from edgepack.packager.progress import Progress
from edgepack.tasks.description import ModelDescription


def describe_model(
    model: Path, calibration: str, work: Path, progress: Progress
) -> ModelDescription:
    """Describe the outputs of a model by its graph and by its values on samples.

    Args:
        model: The ONNX file, or a local Hugging Face model folder.
        calibration: Samples, see `open_samples`.
        work: Folder for files that are written on the way.
        progress: Called for each step.

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
    return samples.split.held_out.description.without(source.watched)

"""The build of whatever a path names: a model, or a pipeline of several graphs."""

from pathlib import Path
from typing import Unpack

from edgepack.packager.pipeline.build import build_bundle
from edgepack.packager.pipeline.build_options import BuildOptions
from edgepack.packager.pipeline.publication import BuildResult
from edgepack.packager.pipeline.request import BuildRequest, derive_request
from edgepack.packager.progress import Progress, silent
from edgepack.packager.stages.build import build_pipeline
from edgepack.packager.stages.pipeline_file import find_pipeline


def build(
    model: str | Path | None = None,
    *,
    progress: Progress = silent,
    **options: Unpack[BuildOptions],
) -> BuildResult:
    """Build, sign and rehearse a bundle with a variant for each profile.

    Example:
        ```python
        from edgepack.packager import build

        result = build(
            "model.onnx",
            profiles=["cpu", "qnn-htp"],
            calibration="samples/",
            key="release.key",
            output="model-1.2.0.edgepack",
        )
        print(result.variants["cpu"].accuracy.value)
        ```

    Args:
        model: The ONNX file, a local Hugging Face model folder, or the file of a pipeline; of an
            adapter, the folder of its base, or None.
        progress: Called with the progress; `print` will do.
        options: See `BuildOptions`.

    Returns:
        Where the bundle lies, its digest, and the report.

    Raises:
        EdgepackError: Any reason for a failed build, in three lines; only the report of the attempt
            is left behind.
    """
    return build_any(derive_request(model, options), progress)


def build_any(request: BuildRequest, progress: Progress) -> BuildResult:
    """Build a bundle; see `build_bundle` and `build_pipeline`.

    Raises:
        EdgepackError: Any reason for a failed build.
    """
    pipeline = find_pipeline(request.model)
    if pipeline is None:
        return build_bundle(request, progress)
    return build_pipeline(pipeline, request, progress)

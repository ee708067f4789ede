"""A float model, quantized by a profile for QNN and run on the HTP simulator."""

from pathlib import Path

import onnx

from edgepack.packager.graph.model_files import save_model
from edgepack.packager.profiles.schema import Profile
from edgepack.packager.progress import silent
from edgepack.packager.quantization.static.candidate_maker import StaticCandidateMaker
from edgepack.packager.runtime.evaluator import profile_settings
from edgepack.packager.runtime.trial import Trial, try_model
from edgepack.packager.tensors.sequence import Samples
from tests.unit.packager_passes.candidate_specs import spec


def try_quantized(
    model: onnx.ModelProto, profile: Profile, samples: Samples, folder: Path, *, count: int
) -> tuple[Path, Trial]:
    """Quantize with MinMax and run the result.

    Args:
        model: The float model after the profile's passes.
        profile: Its settings are used unchanged.
        samples: For ranges.
        folder: For everything that is written.
        count: How many of the samples run, from the first on.

    Returns:
        The quantized model's file, and its run.
    """
    settings = profile.quantize
    assert settings is not None
    path = folder / "variant" / "model.onnx"
    path.parent.mkdir(parents=True)
    quantizer = StaticCandidateMaker(model, settings, samples, work_dir=folder, progress=silent)
    save_model(quantizer.build(spec("minmax")).model, path)
    trial = try_model(
        path,
        samples.pick(range(count)),
        profile_settings(profile),
        timeout_s=300.0,
    )
    return path, trial

"""Host side: makes a signed bundle with a variant per hardware profile from an ONNX model.

The names below are the Python API: typed, and stable from release to release. Each name is loaded
at its first use, so that importing the package costs nothing.

Example:
    ```python
    from edgepack.packager import build

    result = build(
        "model.onnx",
        profiles=["cpu", "qnn-htp"],
        calibration="samples/",
        key="release.key",
        output="model-1.2.0.edgepack",
        progress=print,
    )
    print(result.variants["qnn-htp"].accuracy, result.refused)
    ```
"""

from typing import TYPE_CHECKING

from edgepack.agent.runtime.vendor_telemetry import disable_vendor_telemetry
from edgepack.lazy_names import load_on_first_use

if TYPE_CHECKING:
    from edgepack.packager.comparison.differences import compare
    from edgepack.packager.comparison.result import Comparison
    from edgepack.packager.pipeline.build_options import BuildOptions
    from edgepack.packager.pipeline.publication import BuildResult
    from edgepack.packager.profiles.reading import list_profiles, load_profile
    from edgepack.packager.profiles.schema import Profile
    from edgepack.packager.progress import BuildStep
    from edgepack.packager.reports.report import RefusedProfile, Report, VariantReport
    from edgepack.packager.stages.any_model import build

__all__ = [
    "BuildOptions",
    "BuildResult",
    "BuildStep",
    "Comparison",
    "Profile",
    "RefusedProfile",
    "Report",
    "VariantReport",
    "build",
    "compare",
    "list_profiles",
    "load_profile",
]

_MODULES = {
    "BuildOptions": "edgepack.packager.pipeline.build_options",
    "BuildResult": "edgepack.packager.pipeline.publication",
    "BuildStep": "edgepack.packager.progress",
    "Comparison": "edgepack.packager.comparison.result",
    "Profile": "edgepack.packager.profiles.schema",
    "RefusedProfile": "edgepack.packager.reports.report",
    "Report": "edgepack.packager.reports.report",
    "VariantReport": "edgepack.packager.reports.report",
    "build": "edgepack.packager.stages.any_model",
    "compare": "edgepack.packager.comparison.differences",
    "list_profiles": "edgepack.packager.profiles.reading",
    "load_profile": "edgepack.packager.profiles.reading",
}

if not TYPE_CHECKING:
    __getattr__, __dir__ = load_on_first_use(__name__, _MODULES)

disable_vendor_telemetry()  # before any module below loads ONNX Runtime

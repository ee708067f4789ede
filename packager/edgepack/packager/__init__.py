"""Host side: makes a signed bundle with one variant per hardware profile from an ONNX model.

The names below are the Python API: typed, and stable from release to release. Each is loaded when
it is first used, so that importing the package costs nothing.

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

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgepack.packager.comparison.compare import compare
    from edgepack.packager.comparison.result import Comparison
    from edgepack.packager.pipeline.build import BuildResult, build
    from edgepack.packager.pipeline.request import BuildOptions
    from edgepack.packager.profiles.reading import list_profiles, load_profile
    from edgepack.packager.profiles.schema import Profile
    from edgepack.packager.reports.report import RefusedProfile, Report, VariantReport

__all__ = [
    "BuildOptions",
    "BuildResult",
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
    "BuildOptions": "pipeline.request",
    "BuildResult": "pipeline.build",
    "Comparison": "comparison.result",
    "Profile": "profiles.schema",
    "RefusedProfile": "reports.report",
    "Report": "reports.report",
    "VariantReport": "reports.report",
    "build": "pipeline.build",
    "compare": "comparison.compare",
    "list_profiles": "profiles.reading",
    "load_profile": "profiles.reading",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""What a build is asked for."""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from edgepack.packager.config.inputs import InputDeclaration
from edgepack.packager.config.outputs import OutputDeclaration
from edgepack.packager.gates.user_metric import Metric
from edgepack.packager.search.combinations import SearchedKey
from edgepack.packager.source.fixed_inputs import Numbers


class BuildRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be built.

    Attributes:
        model: The ONNX file, or a local Hugging Face model folder.
        output: An archive where it ends in `.edgepack`, else a folder.
        name, version, release, created_at: See `BundleFacts`.
        profiles: Names or paths, in the order of preference.
        key: Private key file, PEM.
        calibration, evaluation: Paths, `random:N`, or "" for none.
        shapes: Shapes to fix by input name.
        values: Inputs that become constants, by name.
        declarations, outputs: Declared inputs and outputs by name.
        declared_in: The file they came from.
        metric: The user's own metric, or None for the profile's.
        labels: File with the class of each evaluation sample, or None.
        searched: Settings with several values to try.
        budget_s: Seconds that the search may take; None for no limit.
        hooks: Folder of firmware hooks to ship, or None.
        toolchains: By the name of a profile the Python interpreter of an environment that has what
            its devices have; its variant is tried, compiled and rehearsed there.
        allow_degraded: Publish a variant that misses its budget, marked as degraded.
        keep_going: Build the other profiles when one refuses.
        replace: Whether an existing bundle at `output` is replaced.
    """

    model: Path
    output: Path
    name: str
    version: str
    release: int
    created_at: str = ""
    profiles: tuple[str, ...]
    key: Path
    calibration: str = ""
    evaluation: str = ""
    shapes: Mapping[str, tuple[int, ...]] = msgspec.field(default_factory=dict)
    values: Mapping[str, Numbers] = msgspec.field(default_factory=dict)
    declarations: Mapping[str, InputDeclaration] = msgspec.field(default_factory=dict)
    outputs: Mapping[str, OutputDeclaration] = msgspec.field(default_factory=dict)
    declared_in: str = ""
    metric: Metric | None = None
    labels: Path | None = None
    searched: tuple[SearchedKey, ...] = ()
    budget_s: float | None = None
    hooks: Path | None = None
    toolchains: Mapping[str, str] = msgspec.field(default_factory=dict)
    allow_degraded: bool = False
    keep_going: bool = False
    replace: bool = False

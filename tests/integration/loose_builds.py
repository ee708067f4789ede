"""Builds of small models without strict accuracy, to test accepted inputs."""

from pathlib import Path

import onnx

from edgepack.packager.config.inputs import InputDeclaration
from edgepack.packager.pipeline.build import build_bundle as build
from edgepack.packager.pipeline.request import BuildRequest
from edgepack.packager.profiles.schema import Preference
from edgepack.packager.progress import silent
from edgepack.packager.reports.report import VariantReport
from edgepack.packager.source.fixed_inputs import Numbers

_LOOSE = """
[gates]
float_instead = []
[gates.accuracy.any]
keep = 0.01
"""
"""Nearly any accuracy will do."""


class Builder:
    """Builds a model for a profile and returns the result.

    Args:
        folder: Where the model, its samples and its bundle lie.
        key: A private key's file.

    Attributes:
        folder: Where all that lies.
        notes: Notes of the last report about the model and its samples.
    """

    def __init__(self, folder: Path, key: Path) -> None:
        self.folder = folder
        self.notes: tuple[str, ...] = ()
        self._key = key

    def __call__(
        self,
        model: onnx.ModelProto,
        profile: str = "cpu",
        declarations: dict[str, InputDeclaration] | None = None,
        values: dict[str, Numbers] | None = None,
        calibration: str = "random:20",
        prefer: Preference | None = None,
        **shapes: tuple[int, ...],
    ) -> tuple[onnx.ModelProto, VariantReport]:
        """Return the variant's model, and the report's notes."""
        path = self.folder / "model.onnx"
        path.write_bytes(model.SerializeToString())
        loose = self.folder / "loose.toml"
        loose.write_text(f'[profile]\nname = "loose"\nextends = "{profile}"\n{_LOOSE}')
        output = self.folder / "model-1.0.0"
        result = build(
            BuildRequest(
                model=path,
                output=output,
                name="model",
                version="1.0.0",
                release=1,
                profiles=(str(loose),),
                key=self._key,
                calibration=calibration,
                shapes=shapes,
                values=values or {},
                declarations=declarations or {},
                prefer=prefer,
                replace=True,
            ),
            silent,
        )
        self.notes = result.report.notes
        built = onnx.load(output / "model" / "loose" / "model.onnx")
        return built, result.report.variants[0]

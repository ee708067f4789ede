"""Context and result of a pass."""

from pathlib import Path

import msgspec
import onnx

from edgepack.packager.profiles.schema import Limits
from edgepack.packager.tensors.sequence import Samples


class PassContext(msgspec.Struct, frozen=True, kw_only=True):
    """Context of a pass.

    Attributes:
        profile_name: For messages.
        limits: Limits of the provider's input.
        samples: Calibration samples, to check that a pass changes no output.
        work_dir: Folder for temporary files.
        provider: The execution provider with the defects; `run_float_passes` uses the profile's.
        simulator_version: Release of the simulator that tries the variant, or "".
    """

    profile_name: str
    limits: Limits
    samples: Samples
    work_dir: Path
    provider: str = ""
    simulator_version: str = ""


class PassResult(msgspec.Struct, frozen=True, kw_only=True):
    """The model after a pass, and notes for a person."""

    model: onnx.ModelProto
    notes: tuple[str, ...] = ()

"""Opened calibration samples, and texts of rejections."""

from pathlib import Path

import numpy as np
import pytest

from edgepack.errors import BuildError
from edgepack.packager.config.inputs import InputDeclaration, WantedInputs
from edgepack.packager.progress import silent
from edgepack.packager.samples.files import OpenedSamples, open_samples
from edgepack.packager.tensors.spec import TensorSpec
from tests.unit.packager_io.models import IMAGE

SHAPE = (3, 8, 8)


def open_given(
    path: Path | str,
    *specs: TensorSpec,
    declarations: dict[str, InputDeclaration] | None = None,
) -> OpenedSamples:
    return open_samples(
        str(path), WantedInputs(specs=specs or (IMAGE,), declarations=declarations or {}), silent
    )


def refusal_of(
    path: Path | str,
    *specs: TensorSpec,
    declarations: dict[str, InputDeclaration] | None = None,
) -> BuildError:
    with pytest.raises(BuildError) as caught:
        open_given(path, *specs, declarations=declarations)
    return caught.value


def sample_of(
    seed: int, dtype: str = "float32"
) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    return np.random.default_rng(seed).normal(0, 1, (1, *SHAPE)).astype(dtype)

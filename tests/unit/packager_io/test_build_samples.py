"""First samples for a provider, from a build's samples."""

from pathlib import Path

import numpy as np
import pytest

from edgepack.bundle.golden import Golden
from edgepack.packager.config.inputs import WantedInputs
from edgepack.packager.pipeline.build_samples import BuildSamples
from edgepack.packager.progress import silent
from edgepack.packager.samples.files import open_samples
from edgepack.packager.source.model import load_source
from edgepack.packager.source.reference import FloatSource
from edgepack.packager.tensors.sequence import Feeds, Samples, SampleSplit
from tests.unit.packager_io.models import save, small_cnn, write_stack


def _sample(index: int) -> Feeds:
    return {"x": np.array([[float(index)]], np.float32)}


@pytest.mark.parametrize(
    ("golden", "first"),
    [((5, 2, 7, 1, 0), [5, 2, 7, 1]), ((5,), [5, 7, 6, 4]), ((7,), [7, 6, 5, 4])],
)
def test_golden_samples_run_first_and_others_where_they_are_few(
    golden: tuple[int, ...], first: list[int], tmp_path: Path
) -> None:
    source = load_source(save(small_cnn(), tmp_path / "m.onnx"))
    held_out = Samples(count=8, read=_sample, source="made by the test")
    material = BuildSamples(
        opened=open_samples(
            str(write_stack(tmp_path / "stack.npz", 3)), WantedInputs(specs=source.inputs), silent
        ),
        split=SampleSplit(calibration=held_out, search=held_out, held_out=held_out),
        golden=Golden(inputs=tuple(map(_sample, golden)), outputs=tuple(map(_sample, golden))),
        float_source=FloatSource(source, tmp_path / "float.onnx"),
        notes=(),
    )
    assert [int(feeds["x"][0, 0]) for feeds in material.provider_samples(4)] == first

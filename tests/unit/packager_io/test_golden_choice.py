"""Golden samples are few, small, far from each other, and the same each time."""

from pathlib import Path

import numpy as np
import pytest

from edgepack.bundle.golden import Golden
from edgepack.errors import BuildError
from edgepack.packager.config.inputs import WantedInputs
from edgepack.packager.progress import silent
from edgepack.packager.samples.files import open_samples
from edgepack.packager.samples.golden_selection import MOST_SAMPLES, choose_golden
from edgepack.packager.source.model import SourceModel, load_source
from edgepack.packager.source.reference import FloatSource
from edgepack.packager.tensors.sequence import Samples, digest_of
from tests.graphs import graph_model
from tests.unit.packager_io.models import save, small_cnn, write_stack


def _samples(source: SourceModel, folder: Path, count: int) -> Samples:
    stack = write_stack(folder / "stack.npz", count)
    return open_samples(str(stack), WantedInputs(specs=source.inputs), silent).samples


def _choose(source: SourceModel, samples: Samples, folder: Path) -> Golden:
    float_source = FloatSource(source, folder / "f.onnx")
    golden, places = choose_golden(source, samples, folder, silent, float_source)
    for place, inputs in zip(places, golden.inputs, strict=True):
        assert digest_of(samples.read(place)) == digest_of(inputs)
    return golden


def test_at_most_eight_and_the_same_each_time(tmp_path: Path) -> None:
    source = load_source(save(small_cnn(), tmp_path / "m.onnx"))
    samples = _samples(source, tmp_path, 30)
    first, second = (_choose(source, samples, tmp_path) for _ in range(2))
    assert len(first.inputs) == len(first.outputs) == MOST_SAMPLES
    for one, other in zip(first.outputs, second.outputs, strict=True):
        np.testing.assert_array_equal(one["scores"], other["scores"])


def test_few_samples_are_all_taken(tmp_path: Path) -> None:
    source = load_source(save(small_cnn(), tmp_path / "m.onnx"))
    assert len(_choose(source, _samples(source, tmp_path, 2), tmp_path).inputs) == 2


def _identity(tmp_path: Path, width: int) -> SourceModel:
    model = graph_model(f"(float[1,{width}] x) => (float[1,{width}] y) {{ y = Sqrt(x) }}")
    return load_source(save(model, tmp_path / "sqrt.onnx"))


def test_large_samples_stop_at_two_megabytes(tmp_path: Path) -> None:
    source = _identity(tmp_path, 100_000)  # 0.8 MB a sample, input and output
    rng = np.random.default_rng(0)
    values = rng.random((6, 1, 100_000), dtype=np.float32)
    samples = Samples(count=6, read=lambda i: {"x": values[i]}, source="test")
    assert len(_choose(source, samples, tmp_path).inputs) == 2


def test_different_outputs_are_preferred_to_near_ones(tmp_path: Path) -> None:
    source = _identity(tmp_path, 16)
    near = [np.linspace(1, 2, 16, dtype=np.float32)[None] + index * 1e-4 for index in range(20)]
    far = [np.eye(16, dtype=np.float32)[index][None] for index in range(7)]
    values = [*near, *far]
    samples = Samples(count=len(values), read=lambda i: {"x": values[i]}, source="test")
    chosen = _choose(source, samples, tmp_path)
    spikes = [feeds for feeds in chosen.inputs if feeds["x"].min() == 0]
    assert len(spikes) == 7
    assert chosen.inputs[1]["x"].min() == 0, "the second, which every device computes, is unlike"


def test_a_sample_on_which_a_single_score_finds_something_is_the_second(tmp_path: Path) -> None:
    source = _identity(tmp_path, 1)
    squares = [1e-12 * (1 + index) for index in range(20)]
    squares[13] = 0.25
    values = [np.full((1, 1), square, np.float32) for square in squares]
    samples = Samples(count=len(values), read=lambda i: {"x": values[i]}, source="test")
    chosen = _choose(source, samples, tmp_path)
    assert chosen.outputs[1]["y"].item() == 0.5


def test_what_the_candidates_gave_is_remembered(tmp_path: Path) -> None:
    source = _identity(tmp_path, 4)
    values = [np.full((1, 4), index + 1, np.float32) for index in range(3)]
    samples = Samples(count=3, read=lambda i: {"x": values[i]}, source="test")
    float_source = FloatSource(source, tmp_path / "f.onnx")
    golden, _ = choose_golden(source, samples, tmp_path, silent, float_source)
    for feeds, outputs in zip(golden.inputs, golden.outputs, strict=True):
        assert float_source(feeds)["y"] is outputs["y"]
    assert not (tmp_path / "f.onnx").exists(), "nothing had to be loaded for that"
    new = float_source({"x": np.full((1, 4), 81, np.float32)})
    np.testing.assert_array_equal(new["y"], np.full((1, 4), 9, np.float32))


def test_a_float_model_that_gives_nan_is_refused(tmp_path: Path) -> None:
    source = _identity(tmp_path, 4)
    samples = Samples(count=1, read=lambda i: {"x": np.full((1, 4), -1, np.float32)}, source="test")
    with pytest.raises(BuildError) as caught:
        _choose(source, samples, tmp_path)
    assert caught.value.problem.startswith("the float model gives NaN or infinity in output 'y'")
    assert caught.value.found_in == "test, sample 0"

"""What a provider's own trial decides, and that ONNX Runtime leaves float nodes to be float."""

from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import numpy_helper

from edgepack.agent.runtime.opening import ON_CPU, ProviderSettings, open_model_file
from edgepack.errors import BuildError
from edgepack.packager.gates import checks as gates
from edgepack.packager.graph.model_files import save_model
from edgepack.packager.profiles.reading import list_profiles, load_profile
from edgepack.packager.progress import silent
from edgepack.packager.quantization.static.candidate_maker import StaticCandidateMaker
from edgepack.packager.runtime.evaluator import open_plain
from edgepack.packager.runtime.trial import try_model
from edgepack.tasks.arrays import Tensor
from edgepack.tasks.plain_error import PlainError, measure_error
from tests.unit.packager_passes.candidate_specs import spec
from tests.unit.packager_passes.models import constant, parsed_model, samples_for, weight

QNN_PROFILES = [
    name for name in list_profiles() if load_profile(name).device.provider == "QNNExecutionProvider"
]


def uneven_convolutions() -> onnx.ModelProto:
    """Three convolutions; the second's weights make up for a faint channel of the first.

    x float32 (1, 3, 8, 8) to y (1, 4, 8, 8).
    """
    faint = np.array([0.01, 1.0, 1.0, 1.0], dtype=np.float32)
    first = numpy_helper.to_array(weight("", 4, 3, 1, 1)) * faint.reshape(-1, 1, 1, 1)
    uneven = numpy_helper.to_array(weight("", 4, 4, 1, 1)) / faint.reshape(1, -1, 1, 1)
    return parsed_model(
        "(float[1,3,8,8] x) => (float[1,4,8,8] y) { [first] a = Conv(x, w1) "
        "[uneven] b = Conv(a, w2) [relu] c = Relu(b) [last] y = Conv(c, w3) }",
        [constant("w1", first), constant("w2", uneven), weight("w3", 4, 4, 1, 1, seed=1)],
    )


def left_float(folder: Path) -> Path:
    """`uneven_convolutions` for qnn-htp, the second convolution and its rectifier left float."""
    model = uneven_convolutions()
    settings = load_profile("qnn-htp").quantize
    assert settings is not None
    samples = samples_for(model, 8)
    quantizer = StaticCandidateMaker(model, settings, samples, work_dir=folder, progress=silent)
    path = folder / "model.onnx"
    save_model(quantizer.build(spec("minmax", {"uneven", "relu"})).model, path)
    return path


def relative_error(got: Tensor, want: Tensor) -> float:
    """Norm of the difference, as a share of what is wanted."""
    wide = want.astype(np.float64)
    return float(np.linalg.norm(got.astype(np.float64) - wide) / np.linalg.norm(wide))


def test_a_convolution_left_float_keeps_its_float_weights_through_the_optimizer(
    tmp_path: Path,
) -> None:
    path = left_float(tmp_path)
    feeds = samples_for(uneven_convolutions(), 1, seed=1).read(0)
    want = open_plain(path)(feeds)["y"]
    options = load_profile("qnn-htp").provider.session
    on_cpu = msgspec.structs.replace(ON_CPU, session_options=options)
    as_the_profile_asks = open_model_file(path, on_cpu).run(feeds)["y"]
    assert relative_error(as_the_profile_asks, want) < 0.01
    by_default = open_model_file(path).run(feeds)["y"]
    assert relative_error(by_default, want) > 0.1, (
        "the entry in [provider.session] is needed no longer"
    )


@pytest.mark.parametrize("name", QNN_PROFILES)
def test_every_profile_of_qualcomms_leaves_float_weights_alone(name: str) -> None:
    assert load_profile(name).provider.session == load_profile("qnn-htp").provider.session


def _error(noise: float) -> PlainError:
    rng = np.random.default_rng(3)
    want = [rng.normal(0, 1, (1, 64)).astype(np.float32) for _ in range(4)]
    got = [np.asarray(value * (1.0 + noise), np.float32) for value in want]
    return measure_error("scores", want, got)


def test_a_provider_that_rounds_otherwise_than_the_cpu_passes_its_trial() -> None:
    profile = load_profile("qnn-htp")
    assert gates.check_trial(profile, [_error(0.02)], [_error(0.05)]) is None


def test_a_sample_on_which_the_model_says_next_to_nothing_is_measured_by_the_others() -> None:
    profile = load_profile("qnn-htp")
    loud, quiet = np.full((1, 8), 1.0, np.float32), np.full((1, 8), 1e-4, np.float32)

    def error(want: list[npt.NDArray[np.float32]], by: float) -> PlainError:
        got = [np.asarray(value + np.float32(by)) for value in want]
        return measure_error("y", want, got)

    stand_in = error([loud, quiet], 0.001)
    assert gates.check_trial(profile, [stand_in], [error([quiet], 0.002)]) is None
    assert gates.check_trial(profile, [stand_in], [error([quiet], 0.1)]) is not None
    silent_there = error([np.zeros((1, 8), np.float32)], 0.002)
    assert gates.check_trial(profile, [stand_in], [silent_there]) is None
    assert gates.check_trial(profile, [silent_there], [silent_there]) is None


@pytest.mark.parametrize(("name", "precision"), [("qnn-htp", "a16w8"), ("qnn-htp-a8w8", "a8w8")])
def test_a_provider_that_computes_something_else_is_told_with_numbers_and_no_remedy_in_use(
    name: str, precision: str
) -> None:
    profile = load_profile(name)
    refusal = gates.check_trial(profile, [_error(0.02)], [_error(0.25)])
    assert refusal is not None
    assert refusal.problem == (
        "QNNExecutionProvider computes output 'scores' with an error of 26.7% of its size, "
        "the CPU's stand-in with at most 2.1%"
    )
    assert f"whose types are not {precision}" in refusal.remedy
    assert "exclude_ops" in refusal.remedy


def test_of_a_model_that_nothing_lowered_no_other_types_are_offered() -> None:
    refusal = gates.check_trial(load_profile("fp32"), [_error(0.02)], [_error(0.25)])
    assert refusal is not None
    assert refusal.remedy.startswith("export the model with other operators, or a report to")


def test_a_provider_whose_library_is_missing_is_told_and_not_blamed_on_the_model(
    tmp_path: Path,
) -> None:
    model = uneven_convolutions()
    path = tmp_path / "variant" / "model.onnx"
    path.parent.mkdir()
    save_model(model, path)
    with pytest.raises(BuildError, match=r"fails before it takes a node: .*backend") as caught:
        try_model(
            path,
            samples_for(model, 1),
            ProviderSettings(
                provider="QNNExecutionProvider",
                device="npu",
                provider_options={"backend_path": "/gone/libQnnHtp.so"},
            ),
            timeout_s=400.0,
        )
    assert "/gone/libQnnHtp.so" in caught.value.problem
    assert "check what the profile's [provider.options] name" in (caught.value.remedy or "")

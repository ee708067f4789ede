"""Forms of a call: bound arrays, several inferences as one, an array alone, from a coroutine."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edgepack.agent.runtime.sessions import Tensor
from edgepack.agent.serving.model import Model, open_model
from edgepack.errors import DeviceError
from tests.simulators.pointers import write_pointer
from tests.simulators.waiting import wait_until
from tests.unit.agent_runtime.examples import install_model, make_inputs

FAST_S = 0.005


@pytest.fixture
def model(tmp_path: Path) -> Iterator[Model]:
    write_pointer(tmp_path, install_model(tmp_path, 1, scale=1.0))
    with open_model("tiny", tmp_path, threads=1, poll_s=FAST_S) as model:
        yield model


@pytest.fixture
def free_model(tmp_path: Path) -> Iterator[Model]:
    """A model with a free batch."""
    write_pointer(tmp_path, install_model(tmp_path, 1, scale=1.0, batch="n"))
    with open_model("tiny", tmp_path, threads=1, poll_s=FAST_S) as model:
        yield model


def counted(model: Model) -> int:
    return model._serving.record.latency.snapshot().latency.count


def test_a_bound_call_reads_and_writes_the_same_arrays_and_is_counted(model: Model) -> None:
    first, second, _ = (feeds["x"] for feeds in make_inputs(3))
    expected = [model.run({"x": x})["y"].copy() for x in (first, second)]
    before = counted(model)
    x = first.copy()
    bound = model.bind({"x": x})
    y = bound.run()["y"]
    assert np.array_equal(y, expected[0])
    x[...] = second
    assert bound.run()["y"] is y
    assert np.array_equal(y, expected[1])
    assert bound.inputs["x"] is x
    assert counted(model) - before == 2


def test_a_bound_call_makes_its_arrays_where_the_sizes_are_fixed(model: Model) -> None:
    feeds = make_inputs(1)[0]
    expected = model.run(feeds)["y"]
    bound = model.bind()
    bound.inputs["x"][...] = feeds["x"]
    assert np.array_equal(bound.run()["y"], expected)


def test_a_bound_call_follows_a_swap_and_frees_the_release_before(
    model: Model, tmp_path: Path
) -> None:
    feeds = make_inputs(1)[0]
    bound = model.bind(feeds)
    before = bound.run()["y"].copy()
    write_pointer(tmp_path, install_model(tmp_path, 2, scale=3.0))
    wait_until(lambda: model.bundle.release == 2)
    wait_until(lambda: not model._follower._replaced, "nothing holds the release before")
    assert np.allclose(bound.run()["y"], np.multiply(before, 3.0), rtol=1e-5)


def test_a_bound_call_says_when_a_release_takes_other_arrays(model: Model, tmp_path: Path) -> None:
    bound = model.bind()
    write_pointer(tmp_path, install_model(tmp_path, 2, scale=1.0, side=4))
    wait_until(lambda: model.bundle.release == 2)
    with pytest.raises(ValueError, match=r"version 1\.2\.0 does not take the bound arrays: input"):
        bound.run()
    assert model.bind().run()["y"].shape == (1, 4)


@pytest.mark.parametrize(
    ("feeds", "because"),
    [
        ({"x": np.zeros((1, 3, 8, 4), np.float32)}, r"shape \[1, 3, 8, 4\]"),
        ({"x": np.zeros((1, 3, 8, 8))}, "dtype float64"),
        ({"z": np.zeros((1, 3, 8, 8), np.float32)}, "the model's inputs are x"),
        ({"x": np.zeros((1, 3, 8, 16), np.float32)[..., ::2]}, "not contiguous"),
        ({"x": [[1.0]]}, "no array of numbers"),
    ],
)
def test_arrays_that_cannot_be_bound_are_named(
    model: Model, feeds: dict[str, Tensor], because: str
) -> None:
    with pytest.raises(ValueError, match=because):
        model.bind(feeds)


def test_a_model_with_free_sizes_is_bound_to_given_arrays_only(free_model: Model) -> None:
    with pytest.raises(ValueError, match=r"\[n, 3, 8, 8\]: give bind an array"):
        free_model.bind()
    assert free_model.bind({"x": np.zeros((5, 3, 8, 8), np.float32)}).run()["y"].shape == (5, 4)


def test_a_closed_model_runs_no_bound_call(model: Model) -> None:
    bound = model.bind()
    model.close()
    with pytest.raises(ValueError, match="the model is closed"):
        bound.run()


def test_a_bound_array_with_nan_is_counted_as_a_bad_input(model: Model) -> None:
    bound = model.bind()
    bound.inputs["x"][...] = np.nan
    bound.run()
    snapshot = model._serving.record.latency.snapshot()
    assert (snapshot.bad_inputs, snapshot.bad_input, snapshot.not_finite) == (1, "x", 0)


def test_a_batch_runs_as_one_inference_where_the_model_allows_it(free_model: Model) -> None:
    samples = [*make_inputs(3), {"x": np.ones((2, 3, 8, 8), np.float32)}]
    expected = [free_model.run(feeds)["y"] for feeds in samples]
    before = counted(free_model)
    found = free_model.run_batch(samples)
    assert counted(free_model) - before == 1
    for outputs, want in zip(found, expected, strict=True):
        assert np.allclose(outputs["y"], want, rtol=1e-5)


def test_a_batch_of_a_model_without_one_runs_one_after_the_other(model: Model) -> None:
    samples = make_inputs(3)
    found = model.run_batch(samples)
    for outputs, feeds in zip(found, samples, strict=True):
        assert np.array_equal(outputs["y"], model.run(feeds)["y"])
    assert model.run_batch([]) == []
    with pytest.raises(ValueError, match="dtype float64"):
        model.run_batch([samples[0], {"x": np.zeros((1, 3, 8, 8))}])


def test_samples_of_different_sizes_are_no_batch(free_model: Model, tmp_path: Path) -> None:
    write_pointer(tmp_path, install_model(tmp_path, 2, scale=1.0, batch="n", side=8))
    wait_until(lambda: free_model.bundle.release == 2)
    with pytest.raises(ValueError, match="has shape"):
        free_model.run_batch([make_inputs(1)[0], {"x": np.zeros((1, 3, 4, 8), np.float32)}])


def test_a_single_input_takes_its_array_without_a_name(model: Model) -> None:
    feeds = make_inputs(1)[0]
    assert np.array_equal(model.run(feeds["x"])["y"], model.run(feeds)["y"])
    with pytest.raises(ValueError, match="the model's inputs are x: give a dict"):
        model.run([1.0])  # type: ignore[arg-type]


def test_a_coroutine_waits_for_an_inference_in_a_thread(model: Model) -> None:
    samples = make_inputs(3)

    async def run_all() -> list[dict[str, Tensor]]:
        return await asyncio.gather(*(model.run_async(feeds) for feeds in samples))

    found = asyncio.run(run_all())
    for outputs, feeds in zip(found, samples, strict=True):
        assert np.array_equal(outputs["y"], model.run(feeds)["y"])


@pytest.mark.parametrize(
    "swapped",
    [
        pytest.param(lambda x: x.astype(">f4"), id="other byte order"),
        pytest.param(lambda x: x.tolist(), id="list"),
        pytest.param(lambda x: None, id="None"),
        pytest.param(lambda x: x.astype(np.float64), id="float64"),
        pytest.param(lambda x: x[0], id="rank"),
    ],
)
def test_what_onnx_runtime_would_take_or_explain_badly_is_rejected_in_words(
    model: Model, swapped: object
) -> None:
    assert callable(swapped)
    with pytest.raises(ValueError, match="input 'x'"):
        model.run({"x": swapped(make_inputs(1)[0]["x"])})
    with pytest.raises(ValueError, match="the model's inputs are x; given: none"):
        model.run({})
    snapshot = model._serving.record.latency.snapshot()
    assert (snapshot.latency.count, snapshot.failures) == (0, 0)


def test_a_dtype_that_is_equal_but_another_object_is_accepted(model: Model) -> None:
    x = make_inputs(1)[0]["x"]
    other = x.view(np.dtype("f4", metadata={"of": "a pickle"}))
    assert other.dtype is not np.dtype("float32")
    assert np.array_equal(model.run({"x": other})["y"], model.run({"x": x})["y"])


def test_a_runtime_without_the_inner_session_serves_too(model: Model) -> None:
    session = model._serving.session
    feeds = make_inputs(1)[0]
    expected = model.run(feeds)["y"]
    session._call = None
    assert np.array_equal(model.run(feeds)["y"], expected)

    def other_signature(*arguments: object) -> object:
        raise TypeError("run(): incompatible function arguments")

    session._call = other_signature
    assert np.array_equal(model.run(feeds)["y"], expected)


def test_a_failure_of_the_provider_is_told_once_and_not_run_again(model: Model) -> None:
    session, calls = model._serving.session, []

    def failing(*arguments: object) -> object:
        calls.append(arguments)
        raise RuntimeError("the device is gone")

    session._call = failing
    with pytest.raises(DeviceError, match="the device is gone"):
        model.run(make_inputs(1)[0])
    assert len(calls) == 1
    assert model._serving.record.latency.snapshot().failures == 1


@pytest.mark.parametrize("wrong", [3, "abc", [1], {3: np.zeros(1)}, {"zz": np.zeros(1)}])
def test_bound_arrays_that_are_none_are_an_error_that_names_the_inputs(
    model: Model, wrong: object
) -> None:
    for call in (model.bind, lambda one: model.run_batch([one])):
        with pytest.raises(ValueError, match="the model's inputs are x"):
            call(wrong)  # type: ignore[arg-type]


def test_single_array_is_bound_and_batched_like_a_dict(model: Model) -> None:
    (feeds,) = make_inputs(1)
    expected = model.run(feeds)["y"]
    np.testing.assert_array_equal(model.bind(feeds["x"]).run()["y"], expected)
    np.testing.assert_array_equal(model.run_batch([feeds["x"]])[0]["y"], expected)


def test_wrong_arguments_of_open_model_are_named(tmp_path: Path) -> None:
    for name in (3, None, b"tiny"):
        with pytest.raises(TypeError, match="open_model takes the name of a model, not a "):
            open_model(name, tmp_path)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="threads is a number, not a str"):
        open_model("tiny", tmp_path, threads="2")  # type: ignore[call-overload]
    with pytest.raises(DeviceError, match="there is no such state folder") as caught:
        open_model("tiny", tmp_path / "none", via="server")
    assert caught.value.found_in == str(tmp_path / "none")

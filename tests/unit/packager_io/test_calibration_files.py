"""Samples come from plain files, and each bad sample is named before a build begins."""

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from edgepack.packager.config.inputs import TokenInput
from edgepack.packager.tensors.spec import TensorSpec
from tests.unit.packager_io.models import IMAGE, TOKENS, write_stack
from tests.unit.packager_io.opened_samples import SHAPE, open_given, refusal_of, sample_of


def test_a_folder_of_npz_is_one_sample_a_file_in_numeric_order(tmp_path: Path) -> None:
    for index in (10, 2, 1):
        np.savez(tmp_path / f"s{index}.npz", images=sample_of(index))
    opened = open_given(tmp_path)
    assert opened.samples.count == 3
    for place, index in enumerate((1, 2, 10)):
        np.testing.assert_array_equal(opened.samples.read(place)["images"], sample_of(index))


def test_small_samples_are_read_once_and_cannot_be_changed(tmp_path: Path) -> None:
    np.savez(tmp_path / "s1.npz", images=sample_of(1))
    samples = open_given(tmp_path).samples
    (tmp_path / "s1.npz").unlink()
    first = samples.read(0)
    np.testing.assert_array_equal(first["images"], sample_of(1))
    with pytest.raises(ValueError, match="read-only"):
        first["images"][:] = 0
    first.clear()
    assert samples.read(0).keys() == {"images"}


def test_what_a_few_megabytes_do_not_hold_is_read_again(tmp_path: Path) -> None:
    large = TensorSpec(name="images", dtype="float32", shape=(1, 3_000_000))
    np.savez(tmp_path / "s1.npz", images=np.ones(large.shape, np.float32))
    samples = open_given(tmp_path, large).samples
    np.savez(tmp_path / "s1.npz", images=np.zeros(large.shape, np.float32))
    assert not samples.read(0)["images"].any()


def test_a_folder_of_npy_serves_a_model_with_one_input(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", sample_of(1)[0])
    assert open_given(tmp_path).samples.read(0)["images"].shape == (1, *SHAPE)


def test_npy_files_cannot_serve_a_model_with_two_inputs(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", sample_of(1))
    error = refusal_of(tmp_path, IMAGE, TOKENS)
    assert error.problem == (
        "these files hold one array each, the model takes 2 inputs: images, ids"
    )
    assert error.remedy is not None
    assert "np.savez(path, images=…, ids=…)" in error.remedy


@pytest.mark.parametrize("shape", [(5, *SHAPE), (5, 1, *SHAPE)])
def test_one_npz_is_a_stack_with_or_without_the_batch_axis(
    tmp_path: Path, shape: tuple[int, ...]
) -> None:
    values = np.random.default_rng(0).normal(0, 1, shape).astype(np.float32)
    np.savez(tmp_path / "all.npz", images=values)
    opened = open_given(tmp_path / "all.npz")
    assert opened.samples.count == 5
    np.testing.assert_array_equal(opened.samples.read(3)["images"], values[3].reshape((1, *SHAPE)))


def test_a_stack_whose_arrays_differ_in_number_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=np.zeros((3, *SHAPE)), ids=np.zeros((2, 4), np.int64))
    assert refusal_of(tmp_path / "a.npz", IMAGE, TOKENS).problem == (
        "the arrays of a stack must have the same number of samples on their first axis: "
        "images has 3, ids has 2"
    )


def test_onnx_test_data_is_read_in_the_order_of_the_inputs(tmp_path: Path) -> None:
    for index in range(2):
        folder = tmp_path / f"test_data_set_{index}"
        folder.mkdir()
        image = numpy_helper.from_array(sample_of(index))
        ids = numpy_helper.from_array(np.full((1, 4), index))
        (folder / "input_0.pb").write_bytes(image.SerializeToString())
        (folder / "input_1.pb").write_bytes(ids.SerializeToString())
    opened = open_given(tmp_path, IMAGE, TOKENS)
    assert opened.samples.count == 2
    np.testing.assert_array_equal(opened.samples.read(1)["ids"], np.full((1, 4), 1))
    assert open_given(tmp_path / "test_data_set_1", IMAGE, TOKENS).samples.count == 1


def test_a_damaged_pb_is_named(tmp_path: Path) -> None:
    (tmp_path / "input_0.pb").write_bytes(b"\xff\xff\xff")
    assert refusal_of(tmp_path).found_in == str(tmp_path / "input_0.pb")


def test_nothing_there_says_what_would_do(tmp_path: Path) -> None:
    error = refusal_of(tmp_path / "gone")
    assert error.problem == f"there are no samples at {tmp_path / 'gone'}"
    assert "ONNX test data (test_data_set_0/input_0.pb)" in str(error.remedy)


def test_a_folder_without_samples_names_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    assert refusal_of(tmp_path).problem == (
        f"there are no samples in {tmp_path}, which holds notes.txt"
    )


def test_a_mixture_of_forms_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", sample_of(1))
    np.savez(tmp_path / "a.npz", images=sample_of(1))
    assert refusal_of(tmp_path).problem == (
        f"{tmp_path} holds 1 .npz and 1 .npy: which are the samples?"
    )


def test_a_wrong_name_suggests_the_rename(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", image=sample_of(1))
    error = refusal_of(tmp_path)
    assert error.problem == (
        "a sample's names are not the model's inputs (missing: images; not an input: image)"
    )
    assert error.remedy == "rename image -> images"
    assert error.found_in == str(tmp_path / "a.npz")


def test_a_missing_name_lists_what_is_expected(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=sample_of(1))
    error = refusal_of(tmp_path, IMAGE, TOKENS)
    assert error.problem == "a sample's names are not the model's inputs (missing: ids)"
    assert error.remedy == (
        "save one array for each of images, ids, and no other; or, where a device never changes "
        "it, --value ids=0"
    )


def test_a_wrong_shape_shows_both(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=np.zeros((1, 3, 8, 9), np.float32))
    error = refusal_of(tmp_path)
    assert error.problem == (
        "a sample has shape [1,3,8,9], the model takes [batch,3,8,8], or without the first axis "
        "[3,8,8]"
    )
    assert error.found_in == f"{tmp_path / 'a.npz'}, input 'images'"


def test_another_layout_is_recognised(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=np.zeros((1, 8, 8, 3), np.float32))
    spec = TensorSpec(name="images", dtype="float32", shape=(1, 3, 8, 8))
    assert "save array.transpose(0, 3, 1, 2)" in str(refusal_of(tmp_path, spec).remedy)


def test_another_layout_is_recognised_where_the_batch_is_open(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=np.zeros((1, 3, 8, 9), np.float32))
    spec = TensorSpec(name="images", dtype="float32", shape=("batch", 8, 9, 3))
    assert "save array.transpose(0, 2, 3, 1)" in str(refusal_of(tmp_path, spec).remedy)


def test_a_table_of_numbers_is_refused_with_what_makes_samples_of_it(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("1,2\n", encoding="utf-8")
    spec = TensorSpec(name="x", dtype="float32", shape=(1, 2))
    for path in (tmp_path, tmp_path / "a.csv"):
        assert "np.loadtxt('table.csv', delimiter=','" in str(refusal_of(path, spec).remedy)


def test_safe_conversions_are_made_and_noted(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=sample_of(1, "float64"), ids=np.zeros((1, 4), np.int32))
    opened = open_given(tmp_path, IMAGE, TOKENS)
    assert opened.samples.read(0)["images"].dtype == np.float32
    assert opened.samples.read(0)["ids"].dtype == np.int64
    assert f"Samples in {tmp_path.name} were converted: images: float64 -> float32." in opened.notes
    assert f"Samples in {tmp_path.name} were converted: ids: int32 -> int64." in opened.notes


@pytest.mark.parametrize(
    ("spec", "values", "problem"),
    [
        (
            TOKENS,
            np.zeros((1, 4), np.float32),
            "a sample has type float32, the model takes int64",
        ),
        (
            IMAGE,
            np.zeros((1, *SHAPE), np.uint8),
            "a sample has type uint8, the model takes float32",
        ),
        (
            TensorSpec(name="ids", dtype="int32", shape=(1, 4)),
            np.full((1, 4), 2**40),
            "a sample's values 1099511627776 … 1099511627776 do not fit int32 "
            "(-2147483648 … 2147483647)",
        ),
    ],
)
def test_a_type_that_would_lose_values_is_refused(
    tmp_path: Path,
    spec: TensorSpec,
    values: np.ndarray[tuple[int, ...], np.dtype[np.generic]],
    problem: str,
) -> None:
    np.savez(tmp_path / "a.npz", allow_pickle=False, **{spec.name: values})
    assert refusal_of(tmp_path, spec).problem == problem


@pytest.mark.parametrize(("value", "word"), [(np.nan, "NaN"), (np.inf, "infinite")])
def test_nan_and_infinity_name_the_file_and_the_input(
    tmp_path: Path, value: float, word: str
) -> None:
    np.savez(tmp_path / "good.npz", images=sample_of(1))
    bad = sample_of(2)
    bad[0, 0, 0, 0] = value
    np.savez(tmp_path / "worse.npz", images=bad)
    error = refusal_of(tmp_path)
    assert error.problem == f"1 of 192 values of a sample are {word}"
    assert error.found_in == f"{tmp_path / 'worse.npz'}, input 'images'"


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, images=sample_of(1))
    path.write_bytes(path.read_bytes()[:200])
    error = refusal_of(tmp_path)
    assert error.problem.startswith("a.npz cannot be read: ")
    assert error.found_in == str(path)


def test_a_truncated_npy_is_called_truncated(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, sample_of(1))
    path.write_bytes(path.read_bytes()[:200])
    assert refusal_of(tmp_path).problem == "a.npy is truncated"


def test_pickled_objects_are_never_loaded(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=np.array([{"a": 1}], dtype=object))
    assert refusal_of(tmp_path).problem == "a.npz holds Python objects, not numbers"


def test_objects_in_an_npy_are_called_so_and_never_loaded(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    assert refusal_of(tmp_path).problem == "a.npy holds Python objects, not numbers"


def test_a_file_that_is_no_array_at_all_is_called_so(tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_text("hello\n" * 100)
    error = refusal_of(tmp_path)
    assert error.problem == "a.npz is not a NumPy file"
    assert error.remedy == "save arrays: np.savez(path, name=array.astype('float32'))"


def test_bytes_of_the_other_order_mean_the_same_numbers(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=sample_of(1, ">f4"))
    (feeds,) = open_given(tmp_path).samples
    assert feeds["images"].dtype.isnative
    np.testing.assert_array_equal(feeds["images"], sample_of(1))
    tokens = np.arange(4, dtype=">i8")[None]
    (tmp_path / "ids").mkdir()
    np.savez(tmp_path / "ids" / "a.npz", ids=tokens)
    (feeds,) = open_given(tmp_path / "ids", TOKENS).samples
    assert feeds["ids"].tobytes() == np.arange(4, dtype=np.int64).tobytes()


def test_a_float64_beyond_float32_is_told_with_its_value(tmp_path: Path) -> None:
    sample = sample_of(1, "float64")
    sample.flat[7] = 1e300
    np.savez(tmp_path / "a.npz", images=sample)
    error = refusal_of(tmp_path)
    assert error.problem == "a sample's value 1e+300 does not fit float32 (at most 3.40282e+38)"
    assert error.found_in == f"{tmp_path / 'a.npz'}, input 'images'"


def test_a_pipe_among_the_samples_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=sample_of(1))
    os.mkfifo(tmp_path / "b.npz")
    error = refusal_of(tmp_path)
    assert error.problem == "b.npz is not a file"
    assert error.remedy == "remove it from the samples"


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_what_is_neither_file_nor_folder_is_no_form_of_samples(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "samples"
    os.mkfifo(path) if kind == "pipe" else path.symlink_to(os.devnull)
    error = refusal_of(path)
    assert error.problem == f"{path} is not a form of samples"
    assert "a folder of .npz or .npy files" in (error.remedy or "")


def test_a_stack_of_numbers_without_an_axis_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=np.float32(1))
    error = refusal_of(tmp_path / "a.npz")
    assert error.problem == "a stack has a leading sample axis, and images has no axis at all"


@pytest.mark.parametrize("place", ["elsewhere", "too few"])
def test_a_pb_without_its_values_is_named(tmp_path: Path, place: str) -> None:
    folder = tmp_path / "test_data_set_0"
    folder.mkdir()
    tensor = onnx.TensorProto(name="images", data_type=onnx.TensorProto.FLOAT, dims=[1, *SHAPE])
    if place == "elsewhere":
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="/etc/passwd")
    else:
        tensor.raw_data = bytes(8)
    (folder / "input_0.pb").write_bytes(tensor.SerializeToString())
    error = refusal_of(tmp_path)
    problems = {
        "elsewhere": "the values of input_0.pb lie in another file",
        "too few": "input_0.pb cannot be read: cannot reshape array",
    }
    assert error.problem.startswith(problems[place])
    assert error.found_in == str(folder / "input_0.pb")


def test_equal_samples_are_left_out_and_few_ones_noted(tmp_path: Path) -> None:
    for index in range(4):
        np.savez(tmp_path / f"{index}.npz", images=sample_of(index // 2))
    opened = open_given(tmp_path)
    assert opened.samples.count == 2
    assert opened.notes == (
        f"2 of the 4 samples in {tmp_path.name} repeat another one.",
        f"Only 2 different samples in {tmp_path.name}: 100 to 300 make ranges reliable.",
    )


def test_constant_samples_are_noted(tmp_path: Path) -> None:
    values = np.stack([np.full(SHAPE, index, np.float32) for index in range(40)])
    np.savez(tmp_path / "a.npz", images=values)
    assert open_given(tmp_path / "a.npz").notes == ("Every sample in a.npz is constant in images.",)


def test_an_input_of_one_value_in_all_samples_is_not_told_of_each(tmp_path: Path) -> None:
    images = np.random.default_rng(0).normal(0, 1, (40, *SHAPE)).astype(np.float32)
    np.savez(tmp_path / "a.npz", images=images, ids=np.zeros((40, 4), np.int64))
    assert open_given(tmp_path / "a.npz", IMAGE, TOKENS).notes == ()


def test_a_token_beyond_the_vocabulary_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", ids=np.array([[1, 2, 3, 100]]))
    error = refusal_of(tmp_path, TOKENS, declarations={"ids": TokenInput(vocabulary=100)})
    assert error.problem == "a sample has token 100, the vocabulary ends at 99"


def test_a_stack_of_many_samples_needs_no_note(tmp_path: Path) -> None:
    assert open_given(write_stack(tmp_path / "a.npz", 40)).notes == ()

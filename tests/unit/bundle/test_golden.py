"""Golden samples keep their bytes, and outputs are compared with the golden outputs."""

import io
import math
import zipfile
from pathlib import Path

import numpy as np
import pytest

from edgepack.bundle.golden import Golden, Tensor, compare_outputs, read_golden, write_golden
from edgepack.bundle.metadata import GoldenAgreement, GoldenTolerance
from edgepack.errors import BundleError
from edgepack.tasks.description import TaskOutputs

LIMITS = GoldenTolerance(cosine_min=0.99, nrmse_max=0.05)
DECISIONS = GoldenAgreement(part=TaskOutputs(task="classification", outputs=("y",)), keep=0.75)


def outputs(*samples: object, name: str = "y") -> list[dict[str, Tensor]]:
    return [{name: np.asarray(sample, np.float32)} for sample in samples]


@pytest.mark.parametrize(
    "kind", ["float32", "float16", "int8", "int64", "uint8", "bool", "float64"]
)
def test_samples_of_every_numeric_type_come_back_exactly(tmp_path: Path, kind: str) -> None:
    tensor: Tensor = np.arange(6).reshape(1, 2, 3).astype(kind)
    empty: Tensor = np.zeros((0, 3), kind)
    scalar: Tensor = np.array(1, kind)
    golden = Golden(
        inputs=(
            {"input:0": tensor, "/model/in": scalar},
            {"input:0": tensor.T, "/model/in": empty},
        ),
        outputs=({"y": tensor}, {"y": empty}),
    )
    write_golden(tmp_path / "golden.npz", golden)
    again = read_golden(tmp_path / "golden.npz")
    for kept, written in zip(
        again.inputs + again.outputs, golden.inputs + golden.outputs, strict=True
    ):
        assert kept.keys() == written.keys()
        for name, expected in written.items():
            assert (kept[name].dtype, kept[name].shape) == (expected.dtype, expected.shape)
            assert np.array_equal(kept[name], expected)


def test_equal_samples_give_equal_bytes_that_numpy_reads(tmp_path: Path) -> None:
    one: Tensor = np.ones((1, 2), np.float32)
    two: Tensor = np.zeros((1,), np.int64)
    for name, sample in (("a", {"x": one, "m": two}), ("b", {"m": two, "x": one})):
        write_golden(tmp_path / name, Golden(inputs=(sample,), outputs=({"y": one},)))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    with np.load(tmp_path / "a", allow_pickle=False) as archive:
        assert sorted(archive) == ["inputs/0/m", "inputs/0/x", "outputs/0/y"]


def test_text_is_no_golden_sample(tmp_path: Path) -> None:
    text: Tensor = np.array(["text"])
    golden = Golden(inputs=({"x": text},), outputs=({},))
    with pytest.raises(BundleError, match="x' has the type <U4, golden samples are numeric"):
        write_golden(tmp_path / "golden.npz", golden)
    assert not list(tmp_path.iterdir())


def npz(members: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", compression) as archive:
        for name, member in members.items():
            archive.writestr(name, member)
    return content.getvalue()


def npy(array: Tensor, *, allow_pickle: bool = False) -> bytes:
    content = io.BytesIO()
    np.lib.format.write_array(content, array, allow_pickle=allow_pickle)
    return content.getvalue()


GOOD = npy(np.ones(3, np.float32))
MALFORMED: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "not a zip file"),
    "compressed": (
        npz({"inputs/0/x.npy": GOOD, "outputs/0/y.npy": GOOD}, zipfile.ZIP_DEFLATED),
        "is compressed",
    ),
    "a pickle": (
        npz({"inputs/0/x.npy": npy(np.array([{}], object), allow_pickle=True)}),
        "not a plain numeric array",
    ),
    "a bomb": (npz({"inputs/0/x.npy": bytes(10**6)}, zipfile.ZIP_DEFLATED), "longer than itself"),
    "no array": (npz({"inputs/0/x.npy": b"text"}), "not a plain numeric array"),
    "a truncated array": (npz({"inputs/0/x.npy": GOOD[:-1]}), "has 11 bytes for the shape"),
    "no samples at all": (npz({}), "0 samples with inputs, 0 with outputs"),
    "no outputs": (npz({"inputs/0/x.npy": GOOD}), "1 samples with inputs, 0 with outputs"),
    "a gap": (npz({"inputs/1/x.npy": GOOD, "outputs/0/y.npy": GOOD}), "not numbered from 0"),
    "a stranger": (
        npz({"inputs/0/x.npy": GOOD, "outputs/0/y.npy": GOOD, "z.npy": GOOD}),
        "neither input nor output",
    ),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_golden_samples_are_refused_that_are(case: str, tmp_path: Path) -> None:
    content, message = MALFORMED[case]
    (tmp_path / "golden.npz").write_bytes(content)
    with pytest.raises(BundleError) as caught:
        read_golden(tmp_path / "golden.npz")
    assert message in caught.value.problem


def test_missing_golden_samples_are_an_error_with_their_place(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="cannot read golden samples: No such file"):
        read_golden(tmp_path / "none.npz")


def test_equal_outputs_are_right_and_have_no_error() -> None:
    seen = compare_outputs(outputs([1, 2, 3]), outputs([1, 2, 3]), {"y": LIMITS})
    assert (seen.right, seen.worst_nrmse) == (True, 0.0)
    assert "cosine 1.00000 (at least 0.99)" in seen.because


def test_outputs_beyond_the_tolerance_are_wrong_with_the_numbers() -> None:
    seen = compare_outputs(outputs([1, 2, 3]), outputs([3, 2, 1]), {"y": LIMITS})
    assert not seen.right
    assert seen.because.startswith("output 'y': cosine 0.71429 (at least 0.99), nrmse 0.75593")


def test_a_scaled_output_is_wrong_though_its_direction_is_right() -> None:
    seen = compare_outputs(outputs([1, 2, 3]), outputs([2, 4, 6]), {"y": LIMITS})
    assert not seen.right
    assert seen.worst_nrmse == pytest.approx(1.0)


def test_a_task_must_keep_its_share_whatever_the_values_are() -> None:
    expected = outputs(*[[0.0, 9.0]] * 4)
    sure, other = outputs(*[[0.0, 1.0]] * 4), outputs(*[[0.0, 9.0], [9.0, 0.0]] * 2)
    kept = compare_outputs(expected, sure, {}, (DECISIONS,))
    assert (kept.right, kept.task_lost) == (True, 0.0)
    lost = compare_outputs(expected, other, {}, (DECISIONS,)).task_lost
    assert lost is not None
    assert 0.25 < lost <= 0.5
    wrong = compare_outputs(expected, other, {}, (DECISIONS,))
    assert not wrong.right
    assert wrong.because.startswith("classification: top1_agreement 0.5000, keeps 0.5")
    assert wrong.because.endswith("(at least 0.75)")


@pytest.mark.parametrize(
    ("got", "because"),
    [
        (outputs([1, 2]), "output 'y' has the shape [2], expected [3]"),
        (outputs([1, 2, math.nan]), "output 'y' has 1 values that are not finite"),
        (outputs([1, 2, 3], name="z"), "output 'y' was not computed"),
        ([], "nothing to judge"),
    ],
)
def test_outputs_that_cannot_be_compared_are_wrong(
    got: list[dict[str, Tensor]], because: str
) -> None:
    seen = compare_outputs(outputs([1, 2, 3]), got, {"y": LIMITS})
    assert not seen.right
    assert because in seen.because
    assert seen.worst_nrmse == math.inf


def test_nothing_to_judge_is_never_right() -> None:
    assert not compare_outputs(outputs([1]), outputs([1]), {}).right


def test_a_mask_of_minus_infinity_is_compared_where_it_is_finite() -> None:
    masked = outputs([1, -math.inf, 3])
    assert compare_outputs(masked, outputs([1, -math.inf, 3]), {"y": LIMITS}).right
    assert not compare_outputs(masked, outputs([1, 0, 3]), {"y": LIMITS}).right


def test_an_output_of_zeros_must_stay_zero() -> None:
    assert compare_outputs(outputs([0, 0]), outputs([0, 0]), {"y": LIMITS}).right
    assert not compare_outputs(outputs([0, 0]), outputs([0, 1e-9]), {"y": LIMITS}).right


def test_zeros_in_place_of_an_output_are_off_by_all_of_it() -> None:
    seen = compare_outputs(outputs([3, 4]), outputs([0, 0]), {"y": LIMITS})
    assert (seen.right, seen.worst_nrmse) == (False, 1.0)


def test_the_worst_output_gives_the_verdict() -> None:
    expected = [{"a": np.ones(3), "b": np.ones(3)}]
    got = [{"a": np.ones(3), "b": -np.ones(3)}]
    seen = compare_outputs(expected, got, {"a": LIMITS, "b": LIMITS})
    assert not seen.right
    assert "output 'b'" in seen.because
    assert "output 'a'" not in seen.because
    assert seen.worst_nrmse == pytest.approx(2.0)

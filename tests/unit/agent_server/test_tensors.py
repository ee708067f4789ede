"""Tensors of the protocol from untrusted clients."""

import numpy as np
import pytest

from edgepack.agent.inference_protocol.messages import InferRequest, RequestedOutput
from edgepack.agent.inference_protocol.tensors import (
    datatype_of_array,
    dtype_of,
    read_binary,
    read_json,
)
from edgepack.agent.server.blocks import Blocks
from edgepack.agent.server.http_messages import HttpError
from edgepack.agent.server.inferring import Decoded, describe_outputs
from edgepack.agent.server.regions import Regions

DATATYPES = (
    *("FP16", "FP32", "FP64", "BOOL"),
    *("INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64"),
)


@pytest.mark.parametrize("datatype", DATATYPES)
def test_tensor_is_equal_by_bytes_and_by_json(datatype: str) -> None:
    dtype = dtype_of("x", datatype)
    array = np.array([[0, 1, 1], [1, 0, 1]]).astype(dtype)
    for at in (0, 1):  # aligned or not
        content = memoryview(b" " * at + array.tobytes())[at:]
        np.testing.assert_array_equal(read_binary("x", dtype, [2, 3], content), array)
    for data in (array.tolist(), array.ravel().tolist()):
        found = read_json("x", dtype, [2, 3], data)
        assert found.dtype == array.dtype
        np.testing.assert_array_equal(found, array)
    assert datatype_of_array(array) == datatype


def test_integers_beyond_the_precision_of_floats_stay_exact() -> None:
    values = [2**63 - 1, -(2**63)]
    assert read_json("x", dtype_of("x", "INT64"), [2], values).tolist() == values


@pytest.mark.parametrize(
    ("datatype", "shape", "data", "problem"),
    [
        ("FP32", [2], [1.0], "has 1 values, its shape needs 2"),
        ("FP32", [-1], [1.0], "no valid shape"),
        ("FP32", [1] * 33, [1.0], "no valid shape"),
        ("FP32", [2**62, 2**62], [1.0], "its shape needs"),
        ("FP32", [2], [[1.0, 2.0], [3.0]], "another type than float32"),
        ("FP32", [], 1.0, "values"),
        ("FP32", [1], "1.0", "values"),
        ("FP32", [1], ["1.0"], "another type than float32"),
        ("FP32", [1], [None], "another type than float32"),
        ("FP32", [1], [True], "another type than float32"),
        ("FP32", [1], [{}], "another type than float32"),
        ("INT8", [1], [1.5], "another type than int8"),
        ("INT8", [1], [200], "beyond the range of int8"),
        ("UINT8", [1], [-1], "beyond the range of uint8"),
        ("INT64", [1], [2**64], "beyond the range of int64"),
        ("FP64", [1], [10**400], "beyond the range of float64"),
        ("BOOL", [1], [1], "another type than bool"),
        ("FP32", [2], ["x", "y" * 1000], "another type than float32"),
    ],
)
def test_json_that_is_no_such_tensor_is_rejected(
    datatype: str, shape: list[int], data: object, problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        read_json("x", dtype_of("x", datatype), shape, data)


@pytest.mark.parametrize(
    ("shape", "length"), [([2], 4), ([2], 9), ([2**40, 2**40], 8), ([-2], 8), ([0], 4)]
)
def test_bytes_that_do_not_fit_the_shape_are_rejected(shape: list[int], length: int) -> None:
    with pytest.raises(ValueError, match=r"bytes|valid shape"):
        read_binary("x", dtype_of("x", "FP32"), shape, memoryview(bytes(length)))


def test_unknown_datatype_is_rejected_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="known are FP32"):
        dtype_of("x", "BYTES")


def test_an_output_that_the_release_that_ran_does_not_have_is_named() -> None:
    asked = InferRequest(inputs=[], outputs=[RequestedOutput(name="before")])
    outputs = {"y": np.zeros(1, np.float32)}
    with pytest.raises(HttpError, match="the model's outputs are y; named: 'before'"):
        describe_outputs(Decoded(asked, {}, lambda: None), outputs, "m", "1", Regions(Blocks()))

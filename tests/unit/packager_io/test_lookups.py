"""A token beyond its table is found in the sample's file, before anything runs."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgepack.packager.source.lookups import find_lookups
from edgepack.packager.source.model import load_source
from edgepack.packager.tensors.spec import Lookup, TensorSpec
from tests.unit.packager_io.models import save
from tests.unit.packager_io.opened_samples import open_given, refusal_of

_ROWS = 50


def _reader(*before: onnx.NodeProto, indices: str = "ids", axis: int = 0) -> onnx.ModelProto:
    """Return `ids` int64 [1,4] to rows of a table of 50."""
    table = np.random.default_rng(0).normal(0, 1, (_ROWS, 3)).astype(np.float32)
    graph = helper.make_graph(
        [*before, helper.make_node("Gather", ["table", indices], ["y"], name="embed", axis=axis)],
        "reader",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, [1, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(table if axis == 0 else table.T, "table")],
    )
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def _ids(tmp_path: Path, value: int) -> tuple[Path, TensorSpec]:
    (tmp_path / "samples").mkdir()
    for number in range(3):
        ids = np.full((1, 4), 7)
        ids[0, 2] = value if number == 1 else 10 + number
        np.savez(tmp_path / "samples" / f"s{number}.npz", ids=ids)
    (spec,) = load_source(save(_reader(), tmp_path / "m.onnx")).inputs
    return tmp_path / "samples", spec


@pytest.mark.parametrize("value", [_ROWS, 30_000, -_ROWS - 1])
def test_a_token_beyond_the_table_is_told_with_its_file_and_value(
    tmp_path: Path, value: int
) -> None:
    folder, spec = _ids(tmp_path, value)
    error = refusal_of(folder, spec)
    assert error.problem == (
        f"a sample holds {value} at [0,2], which Gather 'embed' looks up in a table of 50 rows"
    )
    assert error.found_in == f"{folder / 's1.npz'}, input 'ids'"


@pytest.mark.parametrize("value", [_ROWS - 1, 0, -_ROWS])
def test_every_row_may_be_named_from_the_start_and_from_the_end(tmp_path: Path, value: int) -> None:
    folder, spec = _ids(tmp_path, value)
    assert open_given(folder, spec).samples.count == 3


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_the_table_s_size_is_that_of_the_axis_that_is_read(axis: int) -> None:
    assert find_lookups(_reader(axis=axis).graph) == {"ids": Lookup(rows=50, node="Gather 'embed'")}


def test_what_only_changes_type_or_shape_is_followed_and_what_may_drop_a_value_is_not() -> None:
    cast = helper.make_node("Cast", ["ids"], ["narrow"], to=TensorProto.INT32)
    shape = helper.make_node("Squeeze", ["narrow"], ["flat"])
    assert find_lookups(_reader(cast, shape, indices="flat").graph).keys() == {"ids"}
    most = helper.make_node("ReduceMin", ["ids"], ["least"])
    assert find_lookups(_reader(most, indices="least").graph) == {}

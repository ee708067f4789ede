"""The table of operators says nothing that ONNX's own schemas contradict."""

from collections import Counter
from collections.abc import Sequence

import onnx
import pytest
from onnx import defs

from edgepack.packager.graph.operators import (
    OPERATORS,
    ROWS,
    Operator,
    facts,
    tells_places,
)

_SCHEMAS = {schema.name: schema for schema in defs.get_all_schemas() if not schema.domain}
_TABLE = [pytest.param(name, row, id=name) for name, row in OPERATORS.items()]


def _type(formal: Sequence[defs.OpSchema.FormalParameter], position: int) -> str:
    return formal[min(position, len(formal) - 1)].type_str


@pytest.mark.parametrize(("name", "row"), _TABLE)
def test_an_operator_of_the_table_is_one_of_onnx_and_has_the_inputs_that_it_names(
    name: str, row: Operator
) -> None:
    schema = _SCHEMAS[name]
    positions = [p for p in (row.weight, row.bias, *row.parameters) if p is not None]
    assert all(position < len(schema.inputs) for position in positions)
    assert row != Operator(), "it says nothing that the defaults do not"


@pytest.mark.parametrize(("name", "row"), _TABLE)
def test_what_moves_values_gives_the_type_that_it_takes(name: str, row: Operator) -> None:
    schema = _SCHEMAS[name]
    if row.one_scale or row.moves_integers or row.cuts or row.passes_factor or row.by_value:
        values = [i for i in range(len(schema.outputs)) if i != row.indices]
        types = {_type(schema.inputs, 0), *(_type(schema.outputs, i) for i in values)}
        assert len(types) == 1
    if row.indices is not None:
        kind = _type(schema.outputs, row.indices)
        [constraint] = [c for c in schema.type_constraints if c.type_param_str == kind]
        assert constraint.allowed_type_strs == ["tensor(int64)"]
    if row.moves_integers:
        [constraint] = [
            c for c in schema.type_constraints if c.type_param_str == _type(schema.inputs, 0)
        ]
        assert {"tensor(int8)", "tensor(uint8)"} <= set(constraint.allowed_type_strs)


@pytest.mark.parametrize(("name", "row"), _TABLE)
def test_what_has_bodies_is_control_flow(name: str, row: Operator) -> None:
    attributes = _SCHEMAS[name].attributes.values()
    has_bodies = any(entry.type == defs.OpSchema.AttrType.GRAPH for entry in attributes)
    assert row.is_control_flow == has_bodies


def test_a_pooling_tells_places_only_where_it_gives_them() -> None:
    pool = onnx.helper.make_node("MaxPool", ["x"], ["y"])
    assert not tells_places(pool)
    pool.output.append("places")
    assert tells_places(pool)


def test_an_operator_that_the_table_does_not_name_has_an_integer_form_and_moves_nothing() -> None:
    unknown = facts("SomeoneElses")
    assert (unknown.has_integer_form, unknown.one_scale, unknown.weights) == (True, False, "")


def test_each_operator_stands_in_the_table_once() -> None:
    counts = Counter(name for names in ROWS for name in names.split())
    assert set(counts.values()) == {1}

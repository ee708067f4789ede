"""Devices of an expression, and invalid expressions."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepack.errors import FleetError
from edgepack.fleet.database.where import MAX_LENGTH, Attributes, parse_where

CAM: Attributes = {
    "soc": frozenset({"QCS6490"}),
    "site": frozenset({"berlin"}),
    "provider": frozenset({"QNNExecutionProvider", "CPUExecutionProvider"}),
    "cpu": frozenset({"Cortex A78 (8)"}),
}


@pytest.mark.parametrize(
    ("text", "is_meant"),
    [
        ("soc=QCS6490 and site=berlin", True),
        ("soc=QCS6490 and site=paris", False),
        ("site=paris or site=berlin", True),
        ("site = 'berlin'", True),
        ('cpu="Cortex A78 (8)"', True),
        ("site!=berlin", False),
        ("floor!=2", True),
        ("floor=2", False),
        ("not site=paris", True),
        ("not not site=paris", False),
        ("provider=QNNExecutionProvider", True),
        ("provider!=CPUExecutionProvider", False),
        ("site=paris and soc=x or soc=QCS6490", True),
        ("site=paris and (soc=x or soc=QCS6490)", False),
        ("(site=berlin)and(soc=QCS6490)", True),
        ("site='and'", False),
    ],
)
def test_an_expression_means_the_devices_that_it_describes(text: str, is_meant: bool) -> None:
    assert parse_where(text).matches(CAM) is is_meant


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "at its end: a label or a fact is expected there"),
        ("site", "at its end: '=' or '!=' is expected there"),
        ("site=", "at its end: a value is expected there"),
        ("site==berlin", "at '=berlin': a value is expected there"),
        ("site=berlin soc=x", "at 'soc=x': 'and' or 'or' is expected there"),
        ("site=berlin and", "at its end: a label or a fact is expected there"),
        ("(site=berlin", "at its end: ')' is expected there"),
        ("site=berlin)", "at ')': 'and' or 'or' is expected there"),
        ("and=1", "at 'and=1': a label or a fact is expected there"),
        ("'site'='", r"""at "'": a closed quote is expected there"""),
        ("-x=1", "at '-x=1': a label or a fact is expected there"),
        ("site!berlin", "at '!berlin': a closed quote is expected there"),
        ("(" * 400 + "a=1", "at most 20 levels is expected there"),
        ("not " * 200 + "a=1", "at most 20 levels is expected there"),
        ("site=\x1b[2J and", "at its end: a label or a fact is expected there"),
        ("a" * (MAX_LENGTH + 1), "an expression has at most 1000 characters, this one has 1001"),
    ],
)
def test_what_is_no_expression_is_refused_in_three_lines(text: str, problem: str) -> None:
    with pytest.raises(FleetError) as refusal:
        parse_where(text)
    assert refusal.value.problem.endswith(problem)
    lines = str(refusal.value).split("\n")
    assert len(lines) == 3
    assert all(line.isprintable() for line in lines)
    assert lines[2] == "  try: --where 'soc=QCS6490 and site=berlin'"


@given(st.text(alphabet="ab=!()'\" andort\0é", max_size=60))
def test_whatever_is_written_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(FleetError):
        assert parse_where(text).matches(CAM) in (True, False)

"""Table of wrong results of providers, with the correct rewrite."""

from collections.abc import Callable
from typing import NamedTuple

from edgepack.packager.passes.workarounds.op_pair import (
    count_padding,
    divide,
    flatten_softplus,
    flatten_tanh,
    name_zero,
    part_sigmoid,
    raise_e,
    read_longer_table,
    sum_last,
)
from edgepack.packager.passes.workarounds.resize import make_sizes_whole, take_plainly
from edgepack.packager.passes.workarounds.site import Site
from edgepack.packager.profiles.pass_settings import WorkaroundOp

_RESIZED = "Resize were written so that the provider takes their rows and columns."
_TEST = "tests/integration/test_workarounds_qnn.py::test_a_workaround_is_needed_and_right"


class Seen(NamedTuple):
    """Observation of a defect on a simulator: its provider and the provider's releases."""

    provider: str
    releases: tuple[str, ...]


class Workaround(NamedTuple):
    """A defect, and its workaround.

    Attributes:
        op: Its name in `ops` of the pass.
        seen: Where.
        wrong: Defect; the rewrite states the size of the error.
        rewrite: Replaces a node by equivalent nodes, if the node is affected.
        note: Text for people behind the number of nodes.
        test: The test that fails when the row is no longer needed.
        replaces: The operator of the replaced nodes, if other than `op`.
    """

    op: WorkaroundOp
    seen: Seen
    wrong: str
    rewrite: Callable[[Site], None]
    note: str
    test: str
    replaces: str = ""


_HTP = Seen("QNNExecutionProvider", ("2.7.0",))

# fmt: off
WORKAROUNDS = (
    Workaround("Reciprocal", _HTP, "where all inputs are below 1: times the greatest", divide,
        "Reciprocal became Div, which the provider computes right.",
        f"{_TEST}[Reciprocal of little]"),
    Workaround("Sigmoid", _HTP, "16 bits: times a convolution, on maps of 9…12 rows", part_sigmoid,
        "Sigmoid were set apart from the convolutions that they meet, on maps of a size on which "
        "the provider computes the two wrongly together.",
        f"{_TEST}[SiLU of 10 rows]", replaces="Mul"),
    Workaround("Softplus", _HTP, "16 bits: of a convolution, on such maps", flatten_softplus,
        "Softplus of convolutions are taken of one row, on maps of such a size.",
        f"{_TEST}[Softplus of a convolution]"),
    Workaround("Tanh", _HTP, "16 bits: of 16 rows, beside products", flatten_tanh,
        "Tanh of 16 rows are taken of one row, which the provider computes right beside products.",
        f"{_TEST}[Tanh of 16 rows]"),
    Workaround("Pow", _HTP, "a constant base that is repeated: 0 but for the first value", raise_e,
        "Pow of a constant base became Exp, which the provider computes right.",
        f"{_TEST}[Pow of a constant base]"),
    Workaround("CumSum", _HTP, "8 bits: along another axis than the last", sum_last,
        "CumSum were turned to the last axis, where the provider is right.",
        f"{_TEST}[CumSum along rows]"),
    Workaround("Gather", _HTP, "16 bits: the last row of a narrow table, by computed indices",
        read_longer_table,
        "Gather read a table that stands twice: the provider reads its last row wrongly.",
        f"{_TEST}[Gather of the last row]"),
    Workaround("Pad", _HTP, "int8: filled with another value than an unnamed 0", name_zero,
        "Pad name the zero that they are filled with.",
        f"{_TEST}[Pad of integers]"),
    Workaround("Resize", _HTP, "nearest: most transformations and roundings, sizes not whole",
        take_plainly, _RESIZED,
        f"{_TEST}[Resize nearest by half pixels]"),
    Workaround("Resize", _HTP, "linear: sizes that a scale does not give whole", make_sizes_whole,
        _RESIZED, f"{_TEST}[Resize linear to half of 13 rows]"),
    Workaround("AveragePool", _HTP, "windows of ceil_mode, padding that counts not", count_padding,
        "AveragePool have padding written out that the provider counts wrongly.",
        f"{_TEST}[AveragePool in ceil mode]"),
)
# fmt: on

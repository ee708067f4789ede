"""Tables of a rollout's gates."""

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from edgepack.fleet.documents.gates import GateView
from edgepack.fleet.documents.wording import gate_numbers, quiet_gates, told_gates

_STYLES = {"pass": "green", "breach": "red", "hold": "red", "accepted": "yellow"}
_NUMBERS = ("devices", "controls", "before", "now", "change", "at least", "threshold")
_WHOLE = ("gate", "verdict")
"""Columns that a narrow terminal does not fold; of the others no digit is cut off either."""


def gates_tables(gates: Sequence[GateView]) -> Iterator[RenderableType]:
    """Yield a table of gates with numbers by hardware class, and a line for each verdict without
    numbers.
    """
    told = told_gates(gates)
    if told:
        table = Table(box=None, header_style="bold", pad_edge=False)
        for name in ("gate", "hardware", "verdict", *_NUMBERS):
            table.add_column(
                name,
                justify="right" if name in _NUMBERS else "left",
                overflow="fold",
                no_wrap=name in _WHOLE,
            )
        for view in told:
            table.add_row(
                view.name,
                Text(view.hardware_class or "all"),
                Text(view.verdict, _STYLES.get(view.verdict, "")),
                str(view.devices),
                "" if view.controls is None else str(view.controls),
                *gate_numbers(view),
            )
        yield table
    for line in quiet_gates(gates):
        yield Text(line, "dim")

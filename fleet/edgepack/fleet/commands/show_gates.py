"""The gates of a rollout, as people read them."""

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from edgepack.fleet.documents.gates import BY_NAME, GateView
from edgepack.fleet.documents.rollouts import RolloutView

_STYLES = {"pass": "green", "breach": "red", "accepted": "yellow"}
_NUMBERS = ("devices", "before", "now", "change", "at least", "lets pass")


def gates_tables(rollout: RolloutView) -> Iterator[RenderableType]:
    """A line for each gate and class that has anything, and one for those that have nothing."""
    told = [view for view in rollout.gates if view.verdict not in ("no evidence", "off")]
    if told:
        table = Table(box=None, header_style="bold", pad_edge=False)
        for name in ("gate", "hardware", "verdict", *_NUMBERS):
            table.add_column(name, justify="right" if name in _NUMBERS else "left")
        for view in told:
            table.add_row(
                view.name,
                Text(view.hardware_class or "all"),
                Text(view.verdict, _STYLES.get(view.verdict, "")),
                str(view.devices),
                *_numbers(view),
            )
        yield table
    for verdict in ("no evidence", "off"):
        names = ", ".join(view.name for view in rollout.gates if view.verdict == verdict)
        if names:
            yield Text(f"{verdict}: {names}", "dim")


def _numbers(view: GateView) -> tuple[str, str, str, str, str]:
    gate = BY_NAME.get(view.name)
    if gate is None:  # a share as it stands
        share, threshold = (f"{x:.0%}" if x is not None else "" for x in (view.now, view.threshold))
        return "", share, "", "", threshold
    measured = (_amount(number, view.unit) for number in (view.before, view.now))
    compared = (
        "" if number is None else gate.shown(number)
        for number in (view.value, view.bound, view.threshold)
    )
    before, now = measured
    change, bound, threshold = compared
    return before, now, change, bound, threshold


def _amount(number: float | None, unit: str) -> str:
    if number is None:
        return ""
    if unit == "bytes":
        return f"{number / 1e6:.0f} MB"
    return f"{number:.1%}" if unit == "%" else f"{number:.3g} {unit}"

"""Preview of a rollout, for people."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from edgepack.fleet.documents.previews import PreviewPart, RollbackPreview, RolloutPreview
from edgepack.fleet.documents.releases import full_title, title
from edgepack.fleet.documents.wording import finding_lines
from edgepack.text import counted

_STYLES = {
    "adds": "green",
    "replaces": "cyan",
    "nothing": "dim",
    "unfit": "yellow",
    "refused": "red",
}


def preview_panel(preview: RolloutPreview) -> RenderableType:
    """Return a panel of the bundle, its devices by wave, and the effect on the devices."""
    waves = counted(len(preview.waves), "wave")
    sizes = ", ".join(str(size) for size in preview.waves)
    head = (
        f"{full_title(preview.bundle)} for {preview.selector}: "
        f"{counted(sum(preview.waves), 'device')} in {waves} ({sizes})"
    )
    table = _table()
    for part in preview.parts:
        table.add_row(
            Text(f"  {part.outcome}", _STYLES.get(part.outcome, "")),
            str(part.devices),
            Text(_meaning(part, preview)),
        )
    for line in finding_lines(preview.finds):
        table.add_row(Text("  finds"), "", Text(line))
    parts: list[RenderableType] = [Text(head), table]
    if preview.note:
        parts.append(Text(f"note: {preview.note}", "yellow"))
    if preview.refusal:
        parts.append(Text(f"refused: {preview.refusal}\n  try: {preview.remedy}", "red"))
    return Group(*parts)


def rollback_panel(preview: RollbackPreview) -> RenderableType:
    """Return a panel of the release that is taken back and the releases that devices go back to."""
    head = f"{full_title(preview.takes_back)} is taken back"
    if preview.effect:
        head += f"; {preview.effect}"
    table = _table()
    for part in preview.parts:
        to = f"to {full_title(part.to)}, {counted(part.wave_count, 'wave')}" if part.to else ""
        table.add_row(
            Text("  goes back", "cyan") if part.to else Text("  stays", "red"),
            str(part.devices),
            Text(f"{to or part.because}: {_names(part.examples, part.devices)}"),
        )
    nobody = "  no device has committed it, so none has to go back"
    parts: list[RenderableType] = [Text(head), table if preview.parts else Text(nobody)]
    if preview.refusal:
        parts.append(Text(f"refused: {preview.refusal}", "red"))
    return Group(*parts)


def _table() -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column()
    table.add_column(justify="right")
    table.add_column(overflow="fold")
    return table


def _names(examples: tuple[str, ...], devices: int) -> str:
    return ", ".join(examples) + (", …" if devices > len(examples) else "")


def _meaning(part: PreviewPart, preview: RolloutPreview) -> str:
    names = _names(part.examples, part.devices)
    runs = ""
    if part.outcome == "replaces" and part.runs is not None:
        is_confusing = title(part.runs) == title(preview.bundle)
        runs = full_title(part.runs) if is_confusing else title(part.runs)
    return f"{', '.join(text for text in (runs, part.because) if text)}: {names}".removeprefix(": ")

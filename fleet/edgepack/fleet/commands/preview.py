"""What a rollout will mean, as people read it."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from edgepack.fleet.documents.previews import PreviewPart, RolloutPreview
from edgepack.fleet.documents.releases import full_title, title
from edgepack.text import counted

_STYLES = {"adds": "green", "replaces": "cyan", "nothing": "dim", "refused": "red"}


def preview_panel(preview: RolloutPreview) -> RenderableType:
    """The bundle, its devices by wave, and what it means to them."""
    waves = counted(len(preview.waves), "wave")
    sizes = ", ".join(str(size) for size in preview.waves)
    head = (
        f"{full_title(preview.bundle)} for {preview.selector}: "
        f"{counted(sum(preview.waves), 'device')} in {waves} ({sizes})"
    )
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column()
    table.add_column(justify="right")
    table.add_column(overflow="fold")
    for part in preview.parts:
        table.add_row(
            Text(f"  {part.outcome}", _STYLES.get(part.outcome, "")),
            str(part.devices),
            Text(_meaning(part, preview)),
        )
    parts: list[RenderableType] = [Text(head), table]
    if preview.refusal:
        parts.append(Text(f"refused: {preview.refusal}\n  try: {preview.remedy}", "red"))
    return Group(*parts)


def _meaning(part: PreviewPart, preview: RolloutPreview) -> str:
    more = ", …" if part.devices > len(part.examples) else ""
    names = ", ".join(part.examples) + more
    runs = ""
    if part.outcome == "replaces" and part.runs is not None:
        is_confusing = title(part.runs) == title(preview.bundle)
        runs = full_title(part.runs) if is_confusing else title(part.runs)
    return f"{', '.join(text for text in (runs, part.because) if text)}: {names}".removeprefix(": ")

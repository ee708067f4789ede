"""The table that `edgepack profiles list` prints."""

from collections.abc import Iterable

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from edgepack.packager.profiles.schema import Profile
from edgepack.packager.wording import short_provider

_PIPE_WIDTH = 1000
"""Columns; wider than any table, whose cells would lose their ends otherwise."""


def print_profiles(profiles: Iterable[Profile]) -> None:
    """One line a profile."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("profile", "provider", "precision", "what it is for"):
        table.add_column(heading)
    for profile in profiles:
        about, device = profile.about, profile.device
        table.add_row(
            escape(profile.name),
            short_provider(device.provider, device.type),
            escape(about.precision),
            escape(about.summary),
        )
    console = Console(highlight=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = _PIPE_WIDTH
    console.print(table)

"""Check against keys in a git work tree, where the next commit may publish the keys."""

from pathlib import Path

import click

from edgepack.errors import EdgepackError

_FORCED = "edgepack.key_place.forced"


def _remember(context: click.Context, _: click.Parameter, forced: bool) -> None:
    context.meta[_FORCED] = forced


into_work_tree_option = click.option(
    "--force",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_remember,
    help="Write keys into a git work tree, too.",
)


def check_key_place(path: Path) -> None:
    """Check that a key's place lies outside of every git work tree, or that `--force` was given.

    Args:
        path: The file or folder to write; the path need not exist.

    Raises:
        EdgepackError: The place lies in a git work tree.
    """
    context = click.get_current_context(silent=True)
    if context is not None and context.meta.get(_FORCED):
        return
    place = path.resolve()
    for folder in (place, *place.parents):
        if (folder / ".git").exists():
            raise EdgepackError(
                f"'{path}' would put a key into the git work tree {folder}",
                found_in=str(place),
                remedy="name a folder outside of the work tree, or --force",
            )

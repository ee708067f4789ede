"""Place of this controller among the controllers on a folder: each place, and SQLite, once."""

import fcntl
from contextlib import ExitStack
from pathlib import Path

from edgepack.errors import FleetError
from edgepack.fleet.data_folder import MAX_CONTROLLERS, DataFolder
from edgepack.fleet.database.store import sqlite_file


def take_place(folder: DataFolder, database_url: str, stack: ExitStack) -> int:
    """Return the lowest free number on this folder; SQLite allows a single controller.

    Raises:
        FleetError: Another controller is there, or there are too many.
    """
    is_shared = database_url.startswith("postgresql")
    for place in range(MAX_CONTROLLERS if is_shared else 1):
        if _lock(folder.root / (f"lock-{place + 1}" if place else "lock"), stack):
            break
    else:
        raise FleetError(
            "another 'edgepack fleet serve' works on this folder"
            if not is_shared
            else f"{MAX_CONTROLLERS} controllers work on this folder",
            found_in=str(folder.root),
            remedy="stop it, or name another folder with --data; several controllers share a "
            "PostgreSQL (--database)"
            if not is_shared
            else "stop one of them",
        )
    database = sqlite_file(database_url)
    if (
        database is not None
        and database.parent.is_dir()
        and not _lock(Path(f"{database}.lock"), stack)
    ):
        raise FleetError(
            "another 'edgepack fleet serve' works on this database",
            found_in=str(database),
            remedy="stop it; several controllers share a PostgreSQL: --database postgresql://…",
        )
    return place


def _lock(path: Path, stack: ExitStack) -> bool:
    """Hold a file until the stack is closed; whether nobody else does."""
    file = stack.enter_context(path.open("w"))
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True

"""A real PostgreSQL server of the tests' own: fresh, without durability, gone afterwards."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, text

INSTALLED = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
USER = "fleet"
# Much faster than a database for each test, whose files are many.
_EMPTY = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
    "WHERE datname = current_database() AND pid != pg_backend_pid()",
    "DROP SCHEMA public CASCADE",
    "CREATE SCHEMA public",
)


class PostgreSQL:
    """A server in a temporary folder; the server refuses to run as root, so root starts the server
    as another user.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        self._programs = INSTALLED[-1].parent
        self._root = Path(tempfile.mkdtemp(prefix="edgepack-postgresql-"))
        self._identity: dict[str, Any] = {}
        if os.geteuid() == 0:
            shutil.chown(self._root, "postgres", "postgres")
            self._identity = {"user": "postgres", "group": "postgres", "extra_groups": ()}
        arguments = ("--auth=trust", f"--username={USER}", "--no-sync", "--encoding=UTF8")
        self._run("initdb", "-D", str(self._data), *arguments)
        self._url = f"postgresql://{USER}@127.0.0.1:{port}/postgres"

    @property
    def _data(self) -> Path:
        return self._root / "data"

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [self._programs / program, *arguments],
            cwd=self._root,
            stdout=subprocess.DEVNULL,
            check=True,
            **self._identity,
        )

    def start(self) -> "PostgreSQL":
        options = f"-h 127.0.0.1 -p {self.port} -k '' -c fsync=off"
        self._run(
            *("pg_ctl", "start", "--wait", "-D", str(self._data), "-o", options),
            *("-l", str(self._root / "log")),
        )
        return self

    def stop(self) -> None:
        self._run("pg_ctl", "stop", "--wait", "-D", str(self._data), "-m", "immediate")

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self._root)

    def dump(self, file: Path) -> None:
        """Write a copy of the database, like an operator."""
        with file.open("wb") as copy:
            arguments = ("--clean", "--if-exists", self._url)
            subprocess.run([self._programs / "pg_dump", *arguments], stdout=copy, check=True)

    def restore(self, file: Path) -> None:
        """Replace the database by a copy, like an operator."""
        settings = ("-q", "-1", "-v", "ON_ERROR_STOP=1", "-f", str(file), self._url)
        subprocess.run([self._programs / "psql", *settings], stdout=subprocess.DEVNULL, check=True)

    def empty_database(self) -> str:
        """Return the URL of the emptied database."""
        engine = create_engine(self._url.replace("postgresql:", "postgresql+psycopg:"))
        with engine.begin() as connection:
            for statement in _EMPTY:
                connection.execute(text(statement))
        engine.dispose()
        return self._url

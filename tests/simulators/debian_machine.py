"""A machine with a Debian of its own: packages are installed, removed and purged as on a board."""

import subprocess
from pathlib import Path

from tests.simulators.systemd_machine import SystemdMachine


class DebianMachine(SystemdMachine):
    """A machine with the programs of Debian.

    Args:
        folder: Is made.
        archive: Root of Debian with systemd.
    """

    def __init__(self, folder: Path, archive: Path) -> None:
        self._archive = archive
        super().__init__(folder)

    def _lay_out(self) -> tuple[dict[str, str], str]:
        self.root.mkdir(parents=True)
        words = ["tar", "--extract", "--exclude=./dev/*", f"--directory={self.root}"]
        subprocess.run([*words, f"--file={self._archive}"], check=True)
        (self.root / "etc/machine-id").write_text("0" * 31 + "1\n")
        return {}, "multi-user.target"

    def files(self) -> set[str]:
        """Return the names of all files but logs and databases of packages."""
        changing = ("var/log", "var/cache", "var/lib/apt", "var/lib/dpkg", "var/lib/systemd", "tmp")
        skipped = tuple(str(self.root / name) for name in (*changing, "root", "run", "var/backups"))
        found = subprocess.run(["find", self.root], check=True, capture_output=True, text=True)
        lines = found.stdout.splitlines()
        # A dash ends the names of the copies that programs for users make of their files.
        return {line for line in lines if not line.startswith(skipped) and line[-1] != "-"}

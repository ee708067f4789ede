"""A Python environment of links, whose packages a test removes or damages while programs run."""

import sys
import sysconfig
from pathlib import Path

QNN = "onnxruntime_qnn"


class OwnSite:
    """An environment with all packages of this one.

    Args:
        folder: Is made.
    """

    def __init__(self, folder: Path) -> None:
        real = Path(sysconfig.get_path("purelib"))
        self._site = folder / real.relative_to(sys.prefix)
        self._site.mkdir(parents=True)
        for entry in real.iterdir():
            (self._site / entry.name).symlink_to(entry)
        home = Path(sys.base_prefix) / "bin"
        (folder / "pyvenv.cfg").write_text(f"home = {home}\n")
        self.python = folder / "bin" / "python"
        self.python.parent.mkdir()
        self.python.symlink_to(home / Path(sys.executable).resolve().name)

    def uninstall_qnn(self) -> None:
        """Remove the plug-in of QNN."""
        for entry in self._site.glob(f"{QNN}*"):
            entry.unlink()

    def break_qnn(self) -> None:
        """Replace the plug-in of QNN by a newer one whose back end cannot be loaded."""
        package = self._site / QNN
        real = package.resolve()
        new = self._site / f"{QNN}.new"
        new.mkdir()
        for entry in real.glob("*.*"):
            (new / entry.name).symlink_to(entry)
        for name, content in (
            ("build_and_package_info.py", "qnn_version = '9.9.9'\n__version__ = '9.9.9'\n"),
            ("libQnnHtp.so", ""),
        ):
            (new / name).unlink()
            (new / name).write_text(content)
        package.unlink()
        new.rename(package)

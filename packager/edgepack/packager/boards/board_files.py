"""Files of a request on a board: sent once, by content, and the oldest removed."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import onnx

from edgepack.packager.boards.link import Link
from edgepack.packager.graph.external_data import external_files

_MOST_FOLDERS = 6
"""The float model, its best candidates and the bundle: a race changes one of two."""


class BoardFiles:
    """Folders on a board, named by the content of their files.

    Args:
        link: The connection; a new connection has an empty folder.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._sent: dict[str, None] = {}
        self._digests: dict[tuple[str, int, int], str] = {}

    def forget(self) -> None:
        """Forget what was sent: the folder on the board is another."""
        self._sent.clear()

    def send_model(self, path: Path) -> str:
        """Send a model with its external data, and return its path on the board."""
        model = onnx.load(path, load_external_data=False)
        root = path.parent.resolve()
        files = {file.relative_to(root).as_posix(): file for file in external_files(path, model)}
        return f"{self.send_folder({**files, path.name: path})}/{path.name}"

    def send_folder(self, files: Mapping[str, Path]) -> str:
        """Send files by their relative paths, and return the path of their folder on the board."""
        names = "".join(f"{name}\0{self._digest(files[name])}\0" for name in sorted(files))
        folder = f"files/{hashlib.sha256(names.encode()).hexdigest()[:32]}"
        if folder not in self._sent:
            while len(self._sent) >= _MOST_FOLDERS:
                oldest = next(iter(self._sent))
                del self._sent[oldest]
                self._link.remove(oldest)
            for name, file in files.items():
                self._link.put(f"{folder}/{name}", file)
        self._sent.pop(folder, None)
        self._sent[folder] = None
        return f"{self._link.folder}/{folder}"

    def _digest(self, path: Path) -> str:
        status = path.stat()
        key = (str(path), status.st_mtime_ns, status.st_size)
        if key not in self._digests:
            with path.open("rb") as file:
                self._digests[key] = hashlib.file_digest(file, "sha256").hexdigest()
        return self._digests[key]

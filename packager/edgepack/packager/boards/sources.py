"""Archive of the modules that a board needs: the agent's, and the packager's children."""

import io
import tarfile
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path

import edgepack

_OF_HOSTS = ("cli", "firmware_hooks", "fleet", "profiles")
_OF_PACKAGER = ("__init__.py", "memory.py", "progress.py", "runtime", "tensors")
_SUFFIXES = (".py", ".toml")


@cache
def pack_sources() -> bytes:
    """Return a compressed tar archive of modules, below `edgepack/`, with the package's version."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz", compresslevel=1) as archive:
        for name, path in _modules():
            archive.add(path, f"edgepack/{name}", recursive=False)
        ours = version("edgepack")
        metadata = f"Metadata-Version: 2.1\nName: edgepack\nVersion: {ours}\n".encode()
        entry = tarfile.TarInfo(f"edgepack-{ours}.dist-info/METADATA")
        entry.size = len(metadata)
        archive.addfile(entry, io.BytesIO(metadata))
    return content.getvalue()


def _modules() -> Iterator[tuple[str, Path]]:
    """Yield the files of modules, by their path below `edgepack`."""
    for root in map(Path, edgepack.__path__):
        for path in sorted(root.rglob("*")):
            name = path.relative_to(root)
            top = name.parts[0].removesuffix(".py")
            is_needed = top not in _OF_HOSTS and (
                top != "packager" or (len(name.parts) > 1 and name.parts[1] in _OF_PACKAGER)
            )
            if is_needed and path.suffix in _SUFFIXES and path.is_file():
                yield name.as_posix(), path

"""Debian packages, written without dpkg (format: deb(5))."""

import hashlib
import io
import lzma
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec

from system_packages.archive import walk, write_tar

_AR_MAGIC = b"!<arch>\n"
_BLOCK = 1 << 20


class Package(msgspec.Struct, frozen=True, kw_only=True):
    """A Debian package.

    Attributes:
        name, version, architecture: As in the file's name.
        depends, recommends: Relations to other packages.
        summary: The first line of the description.
        description: Sentences below the summary, a line each.
        scripts: Name of a maintainer script -> its text.
    """

    name: str
    version: str
    architecture: str
    depends: tuple[str, ...]
    recommends: tuple[str, ...] = ()
    summary: str
    description: tuple[str, ...]
    scripts: Mapping[str, str] = {}

    @property
    def file_name(self) -> str:
        """Name of the file by Debian's convention."""
        return f"{self.name}_{self.version}_{self.architecture}.deb"


def debian_version(version: str, python: str) -> str:
    """Return the version of a package; a pre-release sorts before its release.

    Args:
        version: Of the wheel, such as `1.2.0rc1`.
        python: Minor version of Python, such as `3.11`.
    """
    ordered = re.sub(r"(a|b|rc)(\d+)", r"~\1\2", version).replace(".dev", "~~dev")
    return f"{ordered}+py{python.replace('.', '')}"


def installed_bytes(root: Path) -> int:
    """Return the size of all files below a folder, bytes."""
    return sum(path.stat().st_size for path in walk(root) if is_plain(path))


def is_plain(path: Path) -> bool:
    """Return True for a file that is no link."""
    return path.is_file() and not path.is_symlink()


def write_deb(
    package: Package, root: Path, folder: Path, *, epoch: int, maintainer: str, preset: int
) -> Path:
    """Write a package; the same arguments give the same bytes.

    Args:
        package: The package.
        root: Files of the package, as they are installed below `/`.
        folder: Receives the file.
        epoch: Time of each file, seconds since 1970.
        maintainer: Name and address.
        preset: Effort of the compression by xz, 0 to 9.

    Returns:
        The file.
    """
    path = folder / package.file_name
    with tempfile.TemporaryDirectory() as scratch:
        control = Path(scratch, "control")
        control.mkdir()
        (control / "control").write_text(_control(package, root, maintainer))
        (control / "md5sums").write_text(_md5sums(root))
        for name, text in package.scripts.items():
            (control / name).write_text(text)
            (control / name).chmod(0o755)
        members = [("debian-binary", io.BytesIO(b"2.0\n"))]
        with path.open("wb") as output, tempfile.TemporaryFile() as data:
            small = io.BytesIO()
            with lzma.open(small, "wb", preset=preset) as packed:
                write_tar(control, packed, epoch=epoch)
            with lzma.open(data, "wb", preset=preset) as packed:
                write_tar(root, packed, epoch=epoch)
            output.write(_AR_MAGIC)
            for name, content in (*members, ("control.tar.xz", small), ("data.tar.xz", data)):
                size = content.seek(0, io.SEEK_END)
                content.seek(0)
                header = f"{name:<16}{epoch:<12}{0:<6}{0:<6}{'100644':<8}{size:<10}`\n"
                output.write(header.encode())
                while block := content.read(_BLOCK):
                    output.write(block)
                output.write(b"\n" * (size % 2))
    return path


def _control(package: Package, root: Path, maintainer: str) -> str:
    fields = {
        "Package": package.name,
        "Version": package.version,
        "Architecture": package.architecture,
        "Maintainer": maintainer,
        "Installed-Size": str(-(-installed_bytes(root) // 1024)),
        "Depends": ", ".join(package.depends),
        "Recommends": ", ".join(package.recommends),
        "Section": "admin",
        "Priority": "optional",
        "Description": "\n ".join((package.summary, *package.description)),
    }
    return "".join(f"{name}: {value}\n" for name, value in fields.items() if value)


def _md5sums(root: Path) -> str:
    """Return the sums by which `dpkg --verify` finds changed files."""
    lines = []
    for path in filter(is_plain, walk(root)):
        sum_ = hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()
        lines.append(f"{sum_}  {path.relative_to(root).as_posix()}\n")
    return "".join(lines)

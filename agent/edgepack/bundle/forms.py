"""Both forms of a bundle, folder and file: place, and temporary folder."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from edgepack.bundle.archive import unpack
from edgepack.bundle.chunks import digest_file, read_bounded
from edgepack.bundle.manifest import (
    MANIFEST_FILE,
    MAX_MANIFEST_BYTES,
    Manifest,
    decode_manifest,
)
from edgepack.bundle.signature import root_digest
from edgepack.durable import disk_remedy, is_full
from edgepack.errors import BundleError


def locate(path: Path) -> Path:
    """Return the real path of a bundle: its name may be a link, its files may not.

    Raises:
        BundleError: There is nothing.
    """
    if not path.exists():
        raise BundleError(
            "there is no such bundle",
            found_in=str(path),
            remedy="check the path: a folder, or a .edgepack file, as edgepack build writes them",
        )
    return path.resolve() if path.is_symlink() else path


def check_folder(folder: Path) -> None:
    """Reject a folder that holds no bundle.

    Raises:
        BundleError: The folder has no manifest.
    """
    if not (folder / MANIFEST_FILE).exists():
        raise BundleError(
            f"the folder is not a bundle: it has no {MANIFEST_FILE}",
            found_in=str(folder),
            remedy="name the folder or the .edgepack file that edgepack build wrote",
        )


def read_manifest(folder: Path) -> Manifest:
    """Return a bundle folder's manifest without verification.

    Raises:
        BundleError: See `decode_manifest`.
    """
    return decode_manifest(read_bounded(folder / MANIFEST_FILE, MAX_MANIFEST_BYTES))


def digest_of_folder(folder: Path, manifest: Manifest) -> str:
    """Return the root digest of a bundle with the files of its manifest."""
    digests = {file.path: file.sha256 for file in manifest.files}
    return root_digest(digests | {MANIFEST_FILE: digest_file(folder / MANIFEST_FILE)})


@contextmanager
def open_bundle(
    path: Path,
    *,
    within: Path | None = None,
    prefix: str = "edgepack-",
    archive: BinaryIO | None = None,
) -> Iterator[Path]:
    """Give the folder of a bundle in either form; an archive is unpacked for the time being.

    Nothing is verified.

    Args:
        path: The bundle.
        within: Folder for the unpacked copy; None is where `TMPDIR` says.
        prefix: Begin of the copy's name.
        archive: The opened archive, if this process may not open the file.

    Raises:
        BundleError: There is nothing at `path`, or the archive cannot be unpacked.
    """
    path = path if archive is not None else locate(path)
    if archive is None and path.is_dir():
        check_folder(path)
        yield path
        return
    with tempfile.TemporaryDirectory(prefix=prefix, dir=within) as temporary:
        folder = Path(temporary) / (path.stem or "bundle")
        try:
            unpack(path, folder, archive=archive)
        except BundleError as error:
            cause = error.__cause__
            if not isinstance(cause, OSError):
                raise
            remedy = disk_remedy(cause)
            if is_full(cause):
                remedy = "unpack it where there is more room: edgepack unpack"
                remedy += "" if within else "; or TMPDIR names a folder with more room"
            raise BundleError(error.problem, found_in=error.found_in, remedy=remedy) from error
        yield folder

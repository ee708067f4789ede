"""Archives of bundles on web servers."""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

from edgepack.bundle.archive import unpack
from edgepack.bundle.tree import MAX_FILES
from edgepack.errors import TransferError
from edgepack.registry.way import RESERVE_BYTES, Progress, Way
from edgepack.web.http import BUSY, Answer, Web, WebError, read_whole
from edgepack.web.urls import shown_url

TAR_BYTES = MAX_FILES * 4 * 512
"""What an archive may have beside its files: headers, long names, padding."""


def pull_archive(
    url: str, folder: Path, way: Way, progress: Progress, most_bytes: int | None = None
) -> str:
    """Download an archive, and unpack the archive into a folder.

    Args:
        url: `https://` or `http://`.
        folder: Target folder of the bundle; the archive lies next to the folder.
        way: How to get there.
        progress: Called with the progress.
        most_bytes: Limit of all files together; None is the free space.

    Returns:
        The URL without secrets.

    Raises:
        TransferError: The archive is missing, or too large for the disk.
        BundleError: The archive is not a bundle.
        OSError: The folder cannot be written.
    """
    title = shown_url(url)
    if not url.startswith(("https://", "http://")):
        raise TransferError(f"{title!a} is not a place of a bundle", remedy="oci://… or https://…")
    archive = folder.parent / "downloaded.edgepack"
    # It lies there twice while it is unpacked.
    room = max(0, shutil.disk_usage(folder.parent).free - RESERVE_BYTES) // 2
    limit = room if most_bytes is None else min(room, most_bytes + TAR_BYTES)
    with closing(Web(way.access)) as web, archive.open("xb") as file:
        length = 0

        @contextmanager
        def ask(headers: Mapping[str, str]) -> Iterator[Answer]:
            nonlocal length
            with web.ask(url, headers=headers) as answer:
                if answer.status not in ((200, 206) if headers else (200,)):
                    said = f"HTTP status {answer.status}"
                    raise WebError(said, title=title, is_final=answer.status not in BUSY)
                length = file.tell() + (answer.length_remaining or 0)
                yield answer

        try:
            for piece in read_whole(ask, limit, title):
                file.write(piece)
                progress(file.tell(), length)
        except WebError as error:
            raise TransferError(
                f"the bundle cannot be fetched: {error}", found_in=error.title
            ) from error
    unpack(archive, folder)
    return title

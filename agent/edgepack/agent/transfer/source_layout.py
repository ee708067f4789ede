"""Layout of a bundle's chunks at a source: files below a folder, by digest, or an archive."""

import string
from collections.abc import Mapping, Sequence
from urllib.parse import quote

from edgepack.agent.transfer.chunk_status import MissingChunks
from edgepack.agent.transfer.source import Piece, Remote
from edgepack.bundle.chunks import offsets
from edgepack.bundle.manifest import FileEntry, Manifest
from edgepack.wire.orders import RunModel

WORDS = ("name", "version", "digest", "path", "sha256")
_OF_A_FILE = ("path", "sha256")


def check_template(url: str) -> None:
    """Reject a URL that names no place of a bundle.

    Raises:
        ValueError: The URL has an unknown placeholder, or none at all.
    """
    words = {
        f"{word}{spec}{conversion or ''}"
        for _, word, spec, conversion in string.Formatter().parse(url)
        if word is not None
    }
    if strange := sorted(words - set(WORDS)):
        allowed = ", ".join(f"{{{word}}}" for word in WORDS)
        raise ValueError(f"{{{strange[0]}}} is none of {allowed}")
    if not words:
        raise ValueError(
            "it names no bundle: write {name}, {version}, {digest}, {path} or {sha256}"
        )


def find_remotes(
    template: str, offer: RunModel, manifest: Manifest, missing: Sequence[MissingChunks]
) -> tuple[Remote, ...]:
    """Return the requests to a source.

    Args:
        template: A URL with placeholders in braces; a URL with `{path}` or `{sha256}` is of a
            single file, any other of an archive.
        offer: The bundle.
        manifest: Its manifest.
        missing: Missing chunks.
    """
    entries = {entry.sha256: entry for entry in manifest.files}
    bundle = offer.bundle
    words = {"name": bundle.name, "version": bundle.version, "digest": bundle.digest}
    wanted = [(entries[one.sha256], one.chunks) for one in missing]
    if any(f"{{{word}}}" in template for word in _OF_A_FILE):
        return tuple(
            Remote(
                url=_fill(template, {**words, "path": entry.path, "sha256": entry.sha256}),
                size_bytes=entry.size_bytes,
                pieces=_pieces(entry, chunks, 0),
            )
            for entry, chunks in wanted
        )
    # Loaded where a web server has archives, not on every device.
    from edgepack.bundle.archive import content_starts

    starts = content_starts(manifest, offer.manifest.size_bytes, offer.signature.size_bytes)
    pieces = [
        piece for entry, chunks in wanted for piece in _pieces(entry, chunks, starts[entry.path])
    ]
    pieces.sort(key=lambda piece: piece.start)
    return (Remote(url=_fill(template, words), size_bytes=None, pieces=tuple(pieces)),)


def _pieces(entry: FileEntry, chunks: Sequence[int], start: int) -> tuple[Piece, ...]:
    at = offsets(entry.chunks)
    return tuple(
        Piece(
            start=start + at[index],
            size_bytes=entry.chunks.sizes[index],
            sha256=entry.sha256,
            index=index,
        )
        for index in chunks
    )


def _fill(template: str, words: Mapping[str, str]) -> str:
    return template.format_map({word: quote(value) for word, value in words.items()})

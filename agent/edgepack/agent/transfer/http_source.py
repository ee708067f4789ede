"""Chunks from a web server, by ranges: any static server, object store or registry of blobs."""

import random
import re
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager

from edgepack.agent.transfer.source import Chunk, Piece, Remote, SourceError
from edgepack.errors import TransferError
from edgepack.web.http import BUSY, Answer, WebError
from edgepack.web.urls import shown_url

RETRY_S = (0.5, 1.0, 2.0, 4.0)
"""Waits after an answer that broke off or did not come; each piece that comes begins anew."""
WASTE = 2
"""A server without ranges is read from the start where that is no more than so many times what is
wanted."""
READ_BYTES = 64 * 1024
AskAt = Callable[[str, Mapping[str, str]], AbstractContextManager[Answer]]
_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(?:(\d{1,18})|\*)")


class HttpSource:
    """Files below a URL.

    Args:
        title: Title for a person.
        ask: Gives the answer for a URL and headers.
        close: Ends the connections that `ask` has.
        retry_s: See `RETRY_S`.
    """

    def __init__(
        self,
        title: str,
        ask: AskAt,
        close: Callable[[], None],
        retry_s: Sequence[float] = RETRY_S,
    ) -> None:
        self._title, self._retry_s = title, retry_s
        self._ask_at, self._close = ask, close
        self._ended = threading.Event()

    @property
    def title(self) -> str:
        """Title for a person."""
        return self._title

    def end(self) -> None:
        """End all transfers. Called from another thread."""
        self._ended.set()

    def read(self, remotes: Sequence[Remote]) -> Iterator[Chunk]:
        """Yield the chunks of each file in turn.

        Raises:
            SourceError: The source cannot send further chunks.
        """
        try:
            for remote in remotes:
                yield from self._read_remote(remote)
        finally:
            self._close()

    def _read_remote(self, remote: Remote) -> Iterator[Chunk]:
        pieces, waits = deque(remote.pieces), list(self._retry_s)
        while pieces and not self._ended.is_set():
            try:
                for chunk in self._ask(remote, pieces):
                    waits = list(self._retry_s)
                    yield chunk
            except WebError as error:
                if error.is_final or not waits:
                    raise SourceError(f"{error} ({error.title})") from error
                self._ended.wait(waits.pop(0) * random.uniform(0.5, 1.5))
            except TransferError as error:
                raise SourceError(f"{error.problem} ({error.found_in})") from error

    def _ask(self, remote: Remote, pieces: deque[Piece]) -> Iterator[Chunk]:
        """Yield the chunks of a request for the first adjacent pieces. Received chunks leave the
        list.
        """
        start = pieces[0].start
        count, end = _side_by_side(pieces)
        headers = {"Range": f"bytes={start}-{end - 1}"}
        title = shown_url(remote.url)
        with self._ask_at(remote.url, headers) as answer:
            _check_plain(answer, title)
            if answer.status == 206:
                _check_range(answer, start, end, remote.size_bytes, title)
                yield from self._cut(answer, pieces, count, start, title)
            elif answer.status == 200:
                _check_whole(answer, pieces, remote.size_bytes, title)
                yield from self._cut(answer, pieces, len(pieces), 0, title)
            else:
                is_final = answer.status not in BUSY
                raise WebError(f"HTTP status {answer.status}", title=title, is_final=is_final)

    def _cut(
        self, answer: Answer, pieces: deque[Piece], count: int, at: int, title: str
    ) -> Iterator[Chunk]:
        """Cut the next pieces out of a body that begins at `at`; hold a single piece at a time."""
        held = bytearray()
        for _ in range(count):
            piece = pieces[0]
            while at + len(held) < piece.end:
                if self._ended.is_set():
                    return
                read = answer.read1(min(READ_BYTES, piece.end - at - len(held)))
                if not read:
                    raise WebError("it breaks off", title=title)
                held += read
                skipped = min(len(held), max(0, piece.start - at))
                del held[:skipped]
                at += skipped
            yield Chunk(sha256=piece.sha256, index=piece.index, content=bytes(held))
            pieces.popleft()
            at, held = piece.end, bytearray()


def _side_by_side(pieces: Iterable[Piece]) -> tuple[int, int]:
    """Return the number of leading pieces without a gap, and their end."""
    count = end = 0
    for piece in pieces:
        if count and piece.start != end:
            break
        count, end = count + 1, piece.end
    return count, end


def _check_plain(answer: Answer, title: str) -> None:
    encoding = answer.headers.get("Content-Encoding", "identity")
    if encoding != "identity":
        raise WebError("it sends something encoded, not the file", title=title, is_final=True)


def _check_range(answer: Answer, start: int, end: int, size: int | None, title: str) -> None:
    found = _RANGE.fullmatch(answer.headers.get("Content-Range", ""))
    if found is None or (int(found[1]), int(found[2])) != (start, end - 1):
        raise WebError("it sends another range than was asked for", title=title, is_final=True)
    if size is not None and found[3] is not None and int(found[3]) != size:
        raise WebError(
            f"its file has {int(found[3])} bytes, not {size}", title=title, is_final=True
        )


def _check_whole(answer: Answer, pieces: deque[Piece], size: int | None, title: str) -> None:
    """Check a complete answer of a server without ranges: accept the answer only if most bytes are
    needed.
    """
    length = answer.headers.get("Content-Length", "")
    if size is not None and length.isdecimal() and length != str(size):
        raise WebError(f"its file has {length[:20]} bytes, not {size}", title=title, is_final=True)
    wanted = sum(piece.size_bytes for piece in pieces)
    if pieces[-1].end > WASTE * wanted:
        raise WebError(
            f"it has no ranges, and {wanted} of {pieces[-1].end} bytes are wanted",
            title=title,
            is_final=True,
        )

"""Requests to the `keeper` on a board, and their replies, over one `ssh_stream`.

Whatever comes back is bounded in size, and decoded into a typed struct.
"""

import os
import shlex
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from edgepack.decoding import decode_json
from edgepack.packager.boards import keeper
from edgepack.packager.boards.address import BoardAddress
from edgepack.packager.boards.ssh_stream import (
    END_S,
    PIECE_BYTES,
    LinkLostError,
    OverlongLineError,
    SshStream,
)
from edgepack.packager.boards.wheels import choose_wheels, pack_sources
from edgepack.packager.runtime.board import BoardError

NEEDED = ("msgspec", "numpy", "onnxruntime")
"""Packages that a board needs; numpy comes with onnxruntime."""

_BEAT_S = 10.0
_SHORT_S = 60.0

_MOST_LINES = 1000
MOST_ANSWER_BYTES = 1 << 24
_OLD = "edgepack needs Python 3.11 or newer, and this is %d.%d"


class _Hello(msgspec.Struct, frozen=True, kw_only=True):
    folder: str
    python: tuple[int, int]
    machine: str
    libc: str


class _Reply(msgspec.Struct, frozen=True, kw_only=True):
    problem: str = ""
    ended: str = ""
    missing: tuple[str, ...] = ()
    size: int = 0


class Link:
    """A connection to a board.

    Args:
        address: The board.
        wheels: Folder of wheels to send where packages are missing; None for none.
        token: Names the build, so that a new keeper ends a former keeper.

    Attributes:
        folder: The folder on the board.
    """

    def __init__(self, address: BoardAddress, wheels: Path | None, token: str) -> None:
        self.address = address
        self.folder = ""
        self._wheels = wheels
        self._token = token
        self._stream = SshStream(address)
        self._is_closing = threading.Event()

    @property
    def is_open(self) -> bool:
        """Return whether there is a connection."""
        return self._stream.is_open

    def open(self) -> None:
        """Connect, and send the keeper, edgepack's modules and missing packages.

        Raises:
            LinkLostError: The board cannot be reached, now.
            BoardError: The board cannot prove anything: an unknown host key, no right to log in, no
                or an old Python, missing packages.
        """
        self.drop()
        source = Path(keeper.__file__).read_bytes()
        start = (
            f"import sys;sys.version_info<(3,11)and sys.exit('{_OLD}'%sys.version_info[:2]);"
            f"exec(compile(sys.stdin.buffer.read({len(source)}),'keeper','exec'));"
            f"main('{self._token}')"
        )
        command = f"{shlex.quote(self.address.python)} -I -c {shlex.quote(start)}"
        self._stream.open(command)
        try:
            hello = self._greet(source)
            self.folder, self._stream.is_greeted = hello.folder, True
            self._is_closing = threading.Event()
            threading.Thread(target=self._beat, args=(self._is_closing,), daemon=True).start()
            self._request({"do": "unpack"}, pack_sources())
            if missing := self._missing():
                self._send_wheels(hello, missing)
        except BoardError:
            self.close()
            raise
        except BaseException:
            self.drop()
            raise

    def drop(self) -> None:
        """End the connection without a wait for the board."""
        self.close(wait_s=0.0)

    def close(self, wait_s: float = END_S) -> None:
        """End the connection; the keeper then removes its folder.

        Args:
            wait_s: Limit of the wait for that, seconds.
        """
        self._is_closing.set()
        self._stream.close(wait_s)

    def put(self, path: str, source: Path) -> None:
        """Write a file in the folder on the board.

        Raises:
            LinkLostError: The connection ended.
            BoardError: The board cannot write the file.
        """
        with source.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            with self._stream.sending:
                self._send_header({"do": "put", "path": path, "size": size})
                left = size
                while left:
                    piece = file.read(min(left, PIECE_BYTES))
                    if not piece:
                        raise LinkLostError(f"{source} became shorter while it was sent")
                    left -= len(piece)
                    self._stream.send(piece)
        self._checked_reply()

    def get(self, path: str, most_bytes: int) -> bytes:
        """Return a file of the folder on the board, of at most `most_bytes`.

        Raises:
            LinkLostError: The connection ended.
            BoardError: The file is missing, or too large.
        """
        reply = self._request({"do": "get", "path": path, "most": most_bytes})
        if not 0 <= reply.size <= most_bytes:
            raise self._protocol_error(f"a file of {reply.size} bytes")
        return self._stream.read(reply.size, _SHORT_S)

    def remove(self, path: str) -> None:
        """Remove a folder in the folder on the board."""
        self._request({"do": "remove", "path": path})

    def start(self, module: str) -> None:
        """Start a module of edgepack there, in place of the running module."""
        self._request({"do": "start", "module": module})

    def ask(
        self, request: bytes, *, timeout_s: float, waiting: Callable[[float], None]
    ) -> tuple[bytes | None, str]:
        """Send a line to the running module, and wait for a line.

        Args:
            request: The line, without its end.
            timeout_s: Limit, seconds; the module is ended there.
            waiting: Called every second with the seconds so far.

        Returns:
            The answer and ""; or None and the reason for no answer.

        Raises:
            LinkLostError: The connection ended.
        """
        with self._stream.sending:
            self._send_header({"do": "ask", "size": len(request)})
            self._stream.send(request)
        try:
            reply = self._reply(timeout_s, waiting)
        except TimeoutError:
            with self._stream.sending:
                self._stream.send(b"stop\n")
            reply = self._reply_in_time()
            self._stream.read(_bounded(reply.size), _SHORT_S)
            return None, f"no answer within {timeout_s:.3g} s"
        if reply.ended or reply.problem:
            return None, reply.ended or reply.problem
        if not 0 < reply.size <= MOST_ANSWER_BYTES:
            raise self._protocol_error(f"an answer of {reply.size} bytes")
        return self._stream.read(reply.size, _SHORT_S), ""

    def _greet(self, source: bytes) -> _Hello:
        """Send the keeper, and read its first line behind all that a login prints."""
        with self._stream.sending:
            self._stream.send(source)
        begin = keeper.HELLO.encode()
        try:
            for _ in range(_MOST_LINES):
                line = self._line(time.monotonic() + _SHORT_S)
                if begin in line:
                    return decode_json(line.partition(begin)[2], _Hello)
        except TimeoutError as error:
            raise LinkLostError(f"no greeting within {_SHORT_S:.0f} s") from error
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise self._protocol_error(f"a greeting that cannot be read: {error}") from error
        raise self._protocol_error("no greeting")

    def _missing(self) -> tuple[str, ...]:
        reply = self._request({"do": "missing", "names": NEEDED})
        return tuple(name for name in NEEDED if name in reply.missing)

    def _send_wheels(self, hello: _Hello, missing: tuple[str, ...]) -> None:
        """Send wheels that fit the board, and check that nothing is missing any longer.

        Raises:
            BoardError: Packages are missing, and no wheel has them.
        """
        found = choose_wheels(self._wheels, hello.python, hello.machine, hello.libc)
        for wheel in found:
            self._request({"do": "wheel"}, wheel.read_bytes())
        if found:
            missing = self._missing()
        if not missing:
            return
        version = ".".join(map(str, hello.python))
        names, python = " ".join(missing), self.address.python
        raise BoardError(
            f"board {self.address.name} lacks {', '.join(missing)}",
            found_in=f"{python} there: Python {version}, {hello.machine}, {hello.libc}"
            + (f"; wheels that fit: {len(found)} in {self._wheels}" if self._wheels else ""),
            remedy=f"{python} -m pip install {names} on the board; ssh://…/PATH/OF/PYTHON names "
            "an interpreter that has them; or --prove-wheels with a folder that `pip download "
            f"--only-binary :all: --python-version {version} --platform "
            f"manylinux_2_28_{hello.machine} -d FOLDER {names}` filled",
        )

    def _request(self, header: dict[str, object], payload: bytes | None = None) -> _Reply:
        with self._stream.sending:
            size = {} if payload is None else {"size": len(payload)}
            self._send_header(header | size)
            self._stream.send(payload or b"")
        return self._checked_reply()

    def _checked_reply(self) -> _Reply:
        reply = self._reply_in_time()
        if reply.problem:
            raise BoardError(
                f"board {self.address.name} cannot do its part: {reply.problem}",
                found_in=self.folder,
                remedy="free space and rights in the folder for temporary files there",
            )
        return reply

    def _reply_in_time(self) -> _Reply:
        try:
            return self._reply(_SHORT_S)
        except TimeoutError as error:
            raise LinkLostError(f"no reply within {_SHORT_S:.0f} s") from error

    def _reply(self, timeout_s: float, waiting: Callable[[float], None] = lambda _: None) -> _Reply:
        line = self._line(time.monotonic() + timeout_s, waiting)
        try:
            return decode_json(line, _Reply)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise self._protocol_error(f"a reply that cannot be read: {error}") from error

    def _line(self, until: float, waiting: Callable[[float], None] = lambda _: None) -> bytes:
        try:
            return self._stream.read_line(until, waiting)
        except OverlongLineError as error:
            raise self._protocol_error(str(error)) from error

    def _protocol_error(self, problem: str) -> BoardError:
        self.drop()
        return BoardError(
            f"board {self.address.name} sent {problem}",
            found_in=f"ssh://{self.address.name}",
            remedy="what runs there is not what was sent: look at the board before it is trusted",
        )

    def _beat(self, is_closing: threading.Event) -> None:
        """Show the keeper that the build lives, while the build computes."""
        while not is_closing.wait(_BEAT_S):
            self._stream.beat()

    def _send_header(self, header: dict[str, object]) -> None:
        self._stream.send(msgspec.json.encode(header) + b"\n")


def _bounded(size: int) -> int:
    return size if 0 <= size <= MOST_ANSWER_BYTES else 0

"""Connection to a board: one `ssh` process, which carries requests of `keeper` and their replies.

ssh checks the host's key, with the user's own settings, keys and agent. A connection that ends, or
a board that freezes (noticed within `ALIVE_S` x `ALIVE_COUNT` seconds), is a `LinkLostError`.
Whatever comes back is bounded in size, and decoded into a typed struct.
"""

import contextlib
import os
import select
import shlex
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from edgepack.agent.runtime.child import holding_signals
from edgepack.decoding import decode_json
from edgepack.packager.boards import keeper
from edgepack.packager.boards.address import BoardAddress
from edgepack.packager.boards.sources import pack_sources
from edgepack.packager.boards.ssh_words import explain_ssh
from edgepack.packager.boards.wheels import choose_wheels
from edgepack.packager.runtime.board import BoardError
from edgepack.python_child import child_environment

ALIVE_S, ALIVE_COUNT = 2, 3
_OPTIONS = (
    *("BatchMode=yes", "StrictHostKeyChecking=yes", "ControlMaster=no", "ControlPath=none"),
    *("ClearAllForwardings=yes", "ForwardAgent=no", "ForwardX11=no", "PermitLocalCommand=no"),
    *("RemoteCommand=none", "ConnectTimeout=10", "LogLevel=ERROR"),
    *(f"ServerAliveInterval={ALIVE_S}", f"ServerAliveCountMax={ALIVE_COUNT}"),
)
NEEDED = ("msgspec", "numpy", "onnxruntime")
"""Packages that a board needs; numpy comes with onnxruntime."""

_BEAT_S = 10.0
_SHORT_S = 60.0
_END_S = 20.0
"""A slow board takes its time to remove the folder."""

_PIECE_BYTES = 1 << 18
_MOST_LINE_BYTES = 1 << 16
_MOST_LINES = 1000
MOST_ANSWER_BYTES = 1 << 24
_MOST_WORDS_BYTES = 4096
_OLD = "edgepack needs Python 3.11 or newer, and this is %d.%d"


class LinkLostError(Exception):
    """The connection ended or froze, with ssh's own words."""


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
        self._ssh: subprocess.Popen[bytes] | None = None
        self._unread = b""
        self._words = b""
        self._sending = threading.Lock()
        self._is_closing = threading.Event()

    @property
    def is_open(self) -> bool:
        """Return whether there is a connection."""
        return self._ssh is not None

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
        options = (word for option in _OPTIONS for word in ("-o", option))
        agent = os.environ.get("SSH_AUTH_SOCK")
        try:
            self._ssh = subprocess.Popen(
                ("ssh", "-T", *options, *self.address.ssh_words, command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                env=child_environment(os.environ) | ({"SSH_AUTH_SOCK": agent} if agent else {}),
            )
        except OSError as error:
            raise BoardError(
                f"ssh cannot be started: {error.strerror}",
                found_in=f"ssh://{self.address.name}",
                remedy="install OpenSSH's client on this host (apt install openssh-client)",
            ) from error
        try:
            hello = self._greet(source)
            self.folder = hello.folder
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

    def close(self, wait_s: float = _END_S) -> None:
        """End the connection; the keeper then removes its folder.

        Args:
            wait_s: Limit of the wait for that, seconds.
        """
        self._is_closing.set()
        ssh, self._ssh = self._ssh, None
        if ssh is None or ssh.stdin is None or ssh.stdout is None or ssh.stderr is None:
            return
        with holding_signals():
            with self._sending, contextlib.suppress(OSError):
                ssh.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                ssh.wait(wait_s)
            ssh.kill()
            ssh.wait()
            ssh.stdout.close()
            ssh.stderr.close()
            self._unread = self._words = b""

    def put(self, path: str, source: Path) -> None:
        """Write a file in the folder on the board.

        Raises:
            LinkLostError: The connection ended.
            BoardError: The board cannot write the file.
        """
        with source.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            with self._sending:
                self._send_header({"do": "put", "path": path, "size": size})
                left = size
                while left:
                    piece = file.read(min(left, _PIECE_BYTES))
                    if not piece:
                        raise LinkLostError(f"{source} became shorter while it was sent")
                    left -= len(piece)
                    self._send(piece)
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
        return self._read(reply.size, _SHORT_S)

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
        with self._sending:
            self._send_header({"do": "ask", "size": len(request)})
            self._send(request)
        try:
            reply = self._reply(timeout_s, waiting)
        except TimeoutError:
            with self._sending:
                self._send(b"stop\n")
            reply = self._reply_in_time()
            self._read(_bounded(reply.size), _SHORT_S)
            return None, f"no answer within {timeout_s:.3g} s"
        if reply.ended or reply.problem:
            return None, reply.ended or reply.problem
        if not 0 < reply.size <= MOST_ANSWER_BYTES:
            raise self._protocol_error(f"an answer of {reply.size} bytes")
        return self._read(reply.size, _SHORT_S), ""

    def _greet(self, source: bytes) -> _Hello:
        """Send the keeper, and read its first line behind all that a login prints."""
        with self._sending:
            self._send(source)
        begin = keeper.HELLO.encode()
        try:
            for _ in range(_MOST_LINES):
                line = self._read_line(time.monotonic() + _SHORT_S)
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
        with self._sending:
            size = {} if payload is None else {"size": len(payload)}
            self._send_header(header | size)
            self._send(payload or b"")
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
        line = self._read_line(time.monotonic() + timeout_s, waiting)
        try:
            return decode_json(line, _Reply)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise self._protocol_error(f"a reply that cannot be read: {error}") from error

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
            with self._sending, contextlib.suppress(OSError, ValueError):
                if self._ssh is not None and self._ssh.stdin is not None:
                    os.write(self._ssh.stdin.fileno(), b"\n")

    def _send_header(self, header: dict[str, object]) -> None:
        self._send(msgspec.json.encode(header) + b"\n")

    def _send(self, content: bytes) -> None:
        """Write bytes; the lock is held."""
        unsent, until = memoryview(content), time.monotonic() + _SHORT_S
        while unsent:
            ssh = self._running()
            to_board = ssh.stdin.fileno() if ssh.stdin else -1
            os.set_blocking(to_board, False)
            if self._wait_for(until, to_board):
                try:
                    unsent = unsent[os.write(to_board, unsent[:_PIECE_BYTES]) :]
                except BrokenPipeError as error:
                    raise self._lost() from error
                until = time.monotonic() + _SHORT_S

    def _read_line(self, until: float, waiting: Callable[[float], None] = lambda _: None) -> bytes:
        begin = told = time.monotonic()
        while b"\n" not in self._unread:
            if len(self._unread) > _MOST_LINE_BYTES:
                raise self._protocol_error("a reply without an end")
            self._receive(min(until, time.monotonic() + 1.0))
            now = time.monotonic()
            if b"\n" not in self._unread and now >= until:
                raise TimeoutError
            if now - told >= 1.0:
                told = now
                waiting(now - begin)
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _read(self, size: int, timeout_s: float) -> bytes:
        pieces, left = [self._unread[:size]], size - len(self._unread[:size])
        self._unread = self._unread[size:]
        while left:
            if not self._receive(time.monotonic() + timeout_s):
                raise LinkLostError(f"nothing came within {timeout_s:.0f} s")
            pieces.append(self._unread[:left])
            self._unread = self._unread[left:]
            left -= len(pieces[-1])
        return b"".join(pieces)

    def _receive(self, until: float) -> bool:
        """Read what comes; return False if nothing came until then."""
        before = len(self._unread)
        self._wait_for(until)
        return len(self._unread) > before

    def _wait_for(self, until: float, writable: int | None = None) -> bool:
        """Wait until bytes came, or a file descriptor takes bytes; return the latter.

        Raises:
            LinkLostError: ssh ended.
        """
        ssh = self._running()
        if ssh.stdout is None or ssh.stderr is None:
            raise ValueError("ssh was started without pipes")
        wanted = [] if writable is None else [writable]
        sources = [ssh.stdout.fileno(), ssh.stderr.fileno()]
        while True:
            left_s = max(0.0, until - time.monotonic())
            ready, takes, _ = select.select(sources, wanted, [], left_s)
            if ssh.stderr.fileno() in ready:
                piece = os.read(ssh.stderr.fileno(), _PIECE_BYTES)
                self._words = (self._words + piece)[-_MOST_WORDS_BYTES:]
                if not piece:
                    sources.remove(ssh.stderr.fileno())
            if takes:
                return True
            if ssh.stdout.fileno() in ready:
                piece = os.read(ssh.stdout.fileno(), _PIECE_BYTES)
                if not piece:
                    raise self._lost()
                self._unread += piece
                return False
            if not ready and writable is not None:
                raise LinkLostError(f"the board took nothing for {_SHORT_S:.0f} s")
            if not ready:
                return False

    def _running(self) -> "subprocess.Popen[bytes]":
        if self._ssh is None:
            raise LinkLostError("there is no connection")
        return self._ssh

    def _lost(self) -> Exception:
        """Return the error of an ssh that ended: of the connection, or of what was wanted."""
        ssh = self._running()
        if ssh.stderr is not None:
            with contextlib.suppress(OSError):
                os.set_blocking(ssh.stderr.fileno(), False)
                self._words = (self._words + (ssh.stderr.read() or b""))[-_MOST_WORDS_BYTES:]
        try:
            code = ssh.wait(_END_S)
        except subprocess.TimeoutExpired:
            code = None
        words = self._words.decode("utf-8", "replace").strip()
        is_greeted = bool(self.folder)
        return explain_ssh(self.address, code, words, is_greeted) or LinkLostError(
            words.splitlines()[-1][:300] if words else f"ssh ended with exit code {code}"
        )


def _bounded(size: int) -> int:
    return size if 0 <= size <= MOST_ANSWER_BYTES else 0

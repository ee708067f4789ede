"""Bytes to and from a program on a board, by one `ssh` process.

ssh checks the host's key, with the user's own settings, keys and agent. A connection that ends, or
a board that freezes (noticed within `ALIVE_S` x `ALIVE_COUNT` seconds), is a `LinkLostError`.

Where waiting for the board would not help, ssh's own words are explained.
"""

import contextlib
import os
import select
import subprocess
import threading
import time
from collections.abc import Callable

from edgepack.agent.runtime.child import holding_signals
from edgepack.packager.boards.address import BoardAddress
from edgepack.packager.runtime.board import BoardError
from edgepack.python_child import child_environment

ALIVE_S, ALIVE_COUNT = 2, 3
_OPTIONS = (
    *("BatchMode=yes", "StrictHostKeyChecking=yes", "ControlMaster=no", "ControlPath=none"),
    *("ClearAllForwardings=yes", "ForwardAgent=no", "ForwardX11=no", "PermitLocalCommand=no"),
    *("RemoteCommand=none", "ConnectTimeout=10", "LogLevel=ERROR"),
    *(f"ServerAliveInterval={ALIVE_S}", f"ServerAliveCountMax={ALIVE_COUNT}"),
)
PIECE_BYTES = 1 << 18
END_S = 20.0
"""A slow board takes its time to remove the folder."""
_TAKE_S = 60.0
"""A board that takes no byte for so long is lost."""
_MOST_LINE_BYTES = 1 << 16
_MOST_WORDS_BYTES = 4096


_FAILED = 255
"""Exit code of ssh for a connection that failed; others are those of the command there."""


class LinkLostError(Exception):
    """The connection ended or froze, with ssh's own words."""


class OverlongLineError(Exception):
    """A line without an end came."""


class SshStream:
    """Stream of bytes; a closed stream can be opened again.

    Args:
        address: The board.

    Attributes:
        is_greeted: Whether the program has answered: later ends of ssh are losses of a connection.
        sending: Held while bytes that belong together are sent.
    """

    def __init__(self, address: BoardAddress) -> None:
        self.is_greeted = False
        self.sending = threading.Lock()
        self._address = address
        self._ssh: subprocess.Popen[bytes] | None = None
        self._unread = b""
        self._words = b""

    @property
    def is_open(self) -> bool:
        """Return whether there is a connection."""
        return self._ssh is not None

    def open(self, command: str) -> None:
        """Run a command of the board's shell.

        Raises:
            BoardError: This host has no ssh.
        """
        options = (word for option in _OPTIONS for word in ("-o", option))
        agent = os.environ.get("SSH_AUTH_SOCK")
        try:
            self._ssh = subprocess.Popen(
                ("ssh", "-T", *options, *self._address.ssh_words, command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                env=child_environment(os.environ) | ({"SSH_AUTH_SOCK": agent} if agent else {}),
            )
        except OSError as error:
            raise BoardError(
                f"ssh cannot be started: {error.strerror}",
                found_in=f"ssh://{self._address.name}",
                remedy="install OpenSSH's client on this host (apt install openssh-client)",
            ) from error

    def close(self, wait_s: float) -> None:
        """End the input of the program, and ssh at the latest after a wait."""
        ssh, self._ssh = self._ssh, None
        if ssh is None or ssh.stdin is None or ssh.stdout is None or ssh.stderr is None:
            return
        with holding_signals():
            with self.sending, contextlib.suppress(OSError):
                ssh.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                ssh.wait(wait_s)
            ssh.kill()
            ssh.wait()
            ssh.stdout.close()
            ssh.stderr.close()
            self._unread = self._words = b""

    def beat(self) -> None:
        """Send an empty line; a connection that ends is noticed elsewhere."""
        with self.sending, contextlib.suppress(OSError, ValueError):
            if self._ssh is not None and self._ssh.stdin is not None:
                os.write(self._ssh.stdin.fileno(), b"\n")

    def send(self, content: bytes) -> None:
        """Write bytes; the caller holds `sending`.

        Raises:
            LinkLostError: The board takes nothing, or ssh ended.
        """
        unsent, until = memoryview(content), time.monotonic() + _TAKE_S
        while unsent:
            ssh = self._running()
            to_board = ssh.stdin.fileno() if ssh.stdin else -1
            os.set_blocking(to_board, False)
            if self._wait_for(until, to_board):
                try:
                    unsent = unsent[os.write(to_board, unsent[:PIECE_BYTES]) :]
                except BrokenPipeError as error:
                    raise self._lost() from error
                until = time.monotonic() + _TAKE_S

    def read_line(self, until: float, waiting: Callable[[float], None] = lambda _: None) -> bytes:
        """Return the next line, without its end.

        Args:
            until: Limit, monotonic clock, seconds.
            waiting: Called every second with the seconds so far.

        Raises:
            TimeoutError: No line came until then.
            OverlongLineError: The line has no end.
            LinkLostError: ssh ended.
        """
        begin = told = time.monotonic()
        while b"\n" not in self._unread:
            if len(self._unread) > _MOST_LINE_BYTES:
                raise OverlongLineError("a reply without an end")
            self._receive(min(until, time.monotonic() + 1.0))
            now = time.monotonic()
            if b"\n" not in self._unread and now >= until:
                raise TimeoutError
            if now - told >= 1.0:
                told = now
                waiting(now - begin)
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def read(self, size: int, timeout_s: float) -> bytes:
        """Return so many bytes; each piece must come within a time.

        Raises:
            LinkLostError: Nothing came within the time, or ssh ended.
        """
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
                piece = os.read(ssh.stderr.fileno(), PIECE_BYTES)
                self._words = (self._words + piece)[-_MOST_WORDS_BYTES:]
                if not piece:
                    sources.remove(ssh.stderr.fileno())
            if takes:
                return True
            if ssh.stdout.fileno() in ready:
                piece = os.read(ssh.stdout.fileno(), PIECE_BYTES)
                if not piece:
                    raise self._lost()
                self._unread += piece
                return False
            if not ready and writable is not None:
                raise LinkLostError(f"the board took nothing for {_TAKE_S:.0f} s")
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
            code = ssh.wait(END_S)
        except subprocess.TimeoutExpired:
            code = None
        words = self._words.decode("utf-8", "replace").strip()
        return explain_ssh(self._address, code, words, self.is_greeted) or LinkLostError(
            words.splitlines()[-1][:300] if words else f"ssh ended with exit code {code}"
        )


def explain_ssh(
    address: BoardAddress, code: int | None, words: str, is_greeted: bool
) -> BoardError | None:
    """Return the error of an ssh that ended, if a later try would end the same way.

    Args:
        address: The board.
        code: Exit code of ssh; None if unknown.
        words: What ssh wrote to stderr.
        is_greeted: Whether the keeper ran before.
    """
    last = words.splitlines()[-1][:300] if words else f"exit code {code}"
    port = f" -p {address.port}" if address.port else ""
    login = (
        f"ssh{port} {address.user}@{address.host}" if address.user else f"ssh{port} {address.host}"
    )
    where = f"ssh://{address.name}"
    if "HOST IDENTIFICATION HAS CHANGED" in words:
        return BoardError(
            f"board {address.name} shows another host key than the known key",
            found_in=where,
            remedy=f"if the board was set up anew: ssh-keygen -R {address.host}, then `{login}`; "
            "if not, something else answers in its place",
        )
    if "Host key verification failed" in words:
        return BoardError(
            f"the host key of board {address.name} is not known",
            found_in=where,
            remedy=f"`{login}` once, and compare the fingerprint that it shows; or compare that of "
            f"`ssh-keyscan{port} {address.host}`, and add the key to ~/.ssh/known_hosts",
        )
    if code == _FAILED and "Permission denied" in words:
        return BoardError(
            f"board {address.name} does not let the build log in: {last}",
            found_in=where,
            remedy=f"ssh-copy-id{port} {login.rpartition(' ')[2]}; a key with a passphrase must be "
            "in ssh-agent, since a build asks for nothing",
        )
    if code in (_FAILED, None) or is_greeted:
        return None
    return BoardError(
        f"{address.python} does not run on board {address.name}: {last}",
        found_in=where,
        remedy="install Python 3.11 or newer there, or name its path: "
        f"ssh://{address.user + '@' if address.user else ''}{address.name}/PATH/OF/PYTHON",
    )

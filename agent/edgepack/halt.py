"""How long work is told to end before it is done."""

import threading


class HaltedError(Exception):
    """The work was told to end, and ended."""


class Halt(threading.Event):
    """Set by who wants the work to end; looked at by the work, often."""

    def __init__(self) -> None:
        super().__init__()
        self._is_last_piece = False

    def check(self) -> None:
        """Raise `HaltedError` once the work shall end."""
        if self.is_set():
            raise HaltedError

    def after_this_piece(self) -> None:
        """Lets the piece of the work that is under way end by itself, and nothing follow it."""
        self._is_last_piece = True

    def check_between(self) -> None:
        """Between two pieces: raises `HaltedError` once no other shall follow."""
        if self._is_last_piece or self.is_set():
            raise HaltedError


NEVER = Halt()
"""For work that nobody ends; it is never set."""

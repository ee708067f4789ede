"""Halting of long work."""

import threading


class HaltedError(Exception):
    """The work was ordered to end, and ended."""


class Halt(threading.Event):
    """Set to request an end of the work; the work checks often."""

    def __init__(self) -> None:
        super().__init__()
        self._is_last_piece = False

    def check(self) -> None:
        """Raise `HaltedError` once the work shall end."""
        if self.is_set():
            raise HaltedError

    def after_this_piece(self) -> None:
        """Stop after the current piece of work, and start no further piece."""
        self._is_last_piece = True

    def check_between(self) -> None:
        """Raise `HaltedError` between two pieces of work if no further piece may start."""
        if self._is_last_piece or self.is_set():
            raise HaltedError


NEVER = Halt()
"""For work that nobody ends; it is never set."""

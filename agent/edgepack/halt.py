"""How long work is told to end before it is done."""

import threading


class HaltedError(Exception):
    """The work was told to end, and ended."""


class Halt(threading.Event):
    """Set by who wants the work to end; looked at by the work, often."""

    def check(self) -> None:
        """Raises `HaltedError` once the work shall end."""
        if self.is_set():
            raise HaltedError


NEVER = Halt()
"""For work that nobody ends; it is never set."""

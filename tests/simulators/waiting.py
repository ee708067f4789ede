"""Waits for events, with a limit that also holds on a machine with ten times its load."""

import time
from collections.abc import Callable

PATIENCE_S = 400.0


def wait_until(
    is_so: Callable[[], object], what: str | Callable[[], object] = "", pause_s: float = 0.01
) -> None:
    """Wait until a condition holds; fail with what was waited for, or with a log."""
    until = time.monotonic() + PATIENCE_S
    while not is_so():
        if time.monotonic() > until:
            raise AssertionError(
                f"waited {PATIENCE_S:g} s in vain: {what() if callable(what) else what}"
            )
        time.sleep(pause_s)

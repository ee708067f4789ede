"""Waits for events, with a limit that also holds on a machine with ten times its load."""

import time
from collections.abc import Callable

PATIENCE_S = 400.0


def wait_until(
    is_so: Callable[[], object], what: str | Callable[[], object] = "", pause_s: float = 0.01
) -> None:
    """Wait until a condition holds; fail with what was waited for, or with a log.

    A long wait looks less often: each look may take a fleet's processor time.
    """
    began = time.monotonic()
    while not is_so():
        waited_s = time.monotonic() - began
        if waited_s > PATIENCE_S:
            raise AssertionError(
                f"waited {PATIENCE_S:g} s in vain: {what() if callable(what) else what}"
            )
        time.sleep(max(pause_s, min(waited_s / 20, 0.25)))

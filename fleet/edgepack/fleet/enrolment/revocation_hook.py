"""Telling the broker of revoked certificates: a program is run whenever their list has changed.

Brokers load the list in different ways and on other machines, so a program does the update. The
program also runs at the start, since the list may have changed before.
"""

import logging
import os
import threading
import time
from hashlib import sha256
from pathlib import Path

from edgepack.agent.hooks.process import EndedHook, run_process
from edgepack.halt import Halt, HaltedError
from edgepack.python_child import child_environment

log = logging.getLogger(__name__)

VARIABLE = "EDGEPACK_REVOCATIONS"
"""Names the file with the list, for the program."""
LOOK_S = 1.0
TIMEOUT_S = 60.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 600.0
OUTPUT_BYTES = 10 * 1024
SHOWN_LETTERS = 300


class RevocationHook:
    """Looks every second whether the list has changed, in a thread of its own.

    Args:
        program: An executable file; exit code 0 means success.
        revocations: The list.
    """

    def __init__(self, program: Path, revocations: Path) -> None:
        self._program, self._revocations = program.absolute(), revocations.absolute()
        self._told, self._said = "", ""
        self._pause_s = self._next_at = 0.0
        self._stopping = threading.Event()
        self._halt = Halt()
        self._thread = threading.Thread(target=self._run, name="revocations", daemon=True)

    def start(self) -> None:
        """Start."""
        self._thread.start()

    def stop(self) -> None:
        """End a program that runs."""
        self._stopping.set()
        self._halt.set()
        self._thread.join(timeout=10)

    def warnings(self) -> tuple[str, ...]:
        """Reason why the broker lacks the newest list; empty if the broker has the list."""
        return (self._said,) if self._said else ()

    def _run(self) -> None:
        while not self._stopping.wait(LOOK_S):
            try:
                self._look()
            except HaltedError:
                return
            except Exception:  # the outermost loop of this thread: it goes on
                log.exception("the program of --on-revocation stumbled")

    def _look(self) -> None:
        try:
            newest = sha256(self._revocations.read_bytes()).hexdigest()
        except FileNotFoundError:
            return  # There is none before the fleet has an authority.
        if newest == self._told or time.monotonic() < self._next_at:
            return
        environment = child_environment(os.environ) | {VARIABLE: str(self._revocations)}
        try:
            ended = run_process(
                self._program,
                environment,
                timeout_s=TIMEOUT_S,
                output_limit_bytes=OUTPUT_BYTES,
                halt=self._halt,
            )
            problem = _problem(ended)
        except OSError as error:
            problem = f"it cannot be started: {error.strerror or error}"
        if not problem:
            self._told, self._said, self._pause_s = newest, "", 0.0
            log.info("revocations=%s applied_by=%s", newest[:12], self._program)
            return
        self._pause_s = min(2 * self._pause_s or FIRST_PAUSE_S, LONGEST_PAUSE_S)
        self._next_at = time.monotonic() + self._pause_s
        self._said = (
            "the broker may not know of revoked certificates yet: "
            f"{self._program} failed: {problem}"
        )
        log.warning("revocations=%s not applied because=%s", newest[:12], problem)


def _problem(ended: EndedHook) -> str:
    if ended.exit_code == 0:
        return ""
    how = f"exit code {ended.exit_code}" if ended.exit_code is not None else ended.signal_name
    how = f"it took longer than {TIMEOUT_S:g} s" if ended.timed_out else how
    last = " ".join(ended.output.split())[-SHOWN_LETTERS:]
    return f"{how}: {last}" if last else how

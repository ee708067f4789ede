"""End of a command's process without the freeing of its memory.

Python frees each object and unloads each module at the end of a process: a fifth of the processor
time of a short command. The kernel frees the memory at once.
"""

import atexit
import os
import sys
import threading
from collections.abc import Callable
from typing import NoReturn


def run_to_exit(main: Callable[[], None]) -> NoReturn:
    """Run a program and end the process with its exit code, after all that exit owes.

    Threads that are not daemons end, functions of `atexit` run, and outputs are flushed.

    Args:
        main: The program; may raise `SystemExit`. Another exception ends the process as usual.
    """
    code: object = None
    try:
        main()
    except SystemExit as asked:
        code = asked.code
    if not isinstance(code, int | None):
        print(code, file=sys.stderr)
        code = 1
    end_threads = getattr(threading, "_shutdown", None)
    run_functions = getattr(atexit, "_run_exitfuncs", None)
    if end_threads is None or run_functions is None:  # private names, which Python may drop
        sys.exit(code)
    end_threads()
    run_functions()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):  # nobody reads: Python reports this in its own way
        sys.exit(code)
    os._exit(code or 0)

"""SIGTERM and Ctrl-C, handled where a handler may take locks."""

import queue
import signal
import threading
from collections.abc import Callable, Sequence


def call_on_signals(
    act: Callable[[signal.Signals], object], *, also: Sequence[signal.Signals] = ()
) -> None:
    """Call a function at each SIGTERM and Ctrl-C from now on, in a thread of its own.

    A signal may interrupt the main thread while it holds the lock of an event or a queue. A handler
    that needs the same lock would wait for ever.

    Args:
        act: The function. It gets the signal.
        also: Further signals.
    """
    came: queue.SimpleQueue[int] = queue.SimpleQueue()  # Handlers may put at any moment.

    def wait() -> None:
        while True:
            act(signal.Signals(came.get()))

    threading.Thread(target=wait, name="signals", daemon=True).start()
    for number in (signal.SIGTERM, signal.SIGINT, *also):
        signal.signal(number, lambda number, _frame: came.put(number))

"""SIGTERM and Ctrl-C end the agent's loop, and the agent within five seconds in any state.

SIGHUP reloads the settings.
"""

import logging
import os
import signal
import threading
from collections.abc import Callable

from edgepack.agent.broker.inbox import Inbox
from edgepack.signals import call_on_signals

log = logging.getLogger(__name__)

STOP_S = 5.0
"""An agent that has not ended by itself so long after a signal is ended."""


def handle_signals(
    stop: threading.Event, reload: threading.Event, inbox: Inbox, end_children: Callable[[], object]
) -> None:
    """Stop the loop on SIGTERM and Ctrl-C, and request a reload on SIGHUP.

    Args:
        stop: Is set to stop.
        reload: Is set to reload.
        inbox: Is woken.
        end_children: Kills every child of this process, if the agent did not end in time.
    """

    def handle(number: signal.Signals) -> None:
        if number is signal.SIGHUP:
            reload.set()
            inbox.wake()
            return
        log.info("stopping because of %s", number.name)
        if not stop.is_set():
            end_later(end_children)
        stop.set()
        inbox.wake()

    call_on_signals(handle, also=(signal.SIGHUP,))


def end_later(end_children: Callable[[], object], after_s: float = STOP_S) -> None:
    """End this process after a time, with exit code 1, unless the process ends before.

    The journals record the running work: the next start continues from there.
    """

    def end() -> None:
        log.error("the agent did not end by itself within %g s: it is ended", after_s)
        end_children()
        os._exit(1)

    timer = threading.Timer(after_s, end)
    timer.daemon = True
    timer.start()

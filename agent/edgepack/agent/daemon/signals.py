"""SIGTERM and Ctrl-C end the agent's loop."""

import logging
import signal
import threading

from edgepack.agent.broker.inbox import Inbox

log = logging.getLogger(__name__)


def stop_on_signals(stop: threading.Event, inbox: Inbox) -> None:
    """Lets SIGTERM and Ctrl-C end the loop."""

    def end(number: int, _frame: object) -> None:
        log.info("stopping because of %s", signal.Signals(number).name)
        stop.set()
        inbox.wake()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)

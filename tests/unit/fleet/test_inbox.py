"""Queue of messages: number, time, and waiting."""

import threading

import pytest

from edgepack.fleet.controller import inbox as module
from edgepack.fleet.controller.inbox import Inbox
from edgepack.wire import topics

REPORTED = topics.up("t", "a", "reported")
LONG_S = 60.0


def test_messages_are_taken_together_and_in_order() -> None:
    inbox = Inbox("t")
    for number in range(3):
        inbox.receive(REPORTED, b"%d" % number)
    assert [message.payload for message in inbox.take(LONG_S)] == [b"0", b"1", b"2"]
    assert inbox.is_empty


def test_who_wakes_it_ends_the_wait_for_more_messages() -> None:
    inbox = Inbox("t")
    inbox.receive(REPORTED, b"")
    waker = threading.Thread(target=inbox.wake)
    waker.start()
    assert len(inbox.take(LONG_S, LONG_S)) == 1
    waker.join()


def test_a_full_batch_waits_for_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH_LENGTH", 2)
    inbox = Inbox("t")
    for _ in range(3):
        inbox.receive(REPORTED, b"")
    assert len(inbox.take(LONG_S, LONG_S)) == 2
    assert not inbox.is_empty


def test_beyond_its_memory_messages_are_dropped_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "INBOX_BYTES", 2 * (module.MAX_MESSAGE_OVERHEAD + 10))
    inbox = Inbox("t")
    for _ in range(3):
        inbox.receive(REPORTED, b"x" * 10)
    assert len(inbox.take(LONG_S)) == 2
    assert inbox.counters == {"overflow": 1}
    inbox.receive(REPORTED, b"x" * 10)
    assert len(inbox.take(LONG_S)) == 1, "there is room again"

"""An agent's conclusions from replies, and from connections taken over."""

import random

import pytest

from edgepack.agent.broker.silence import ANSWER_S, NO_SUBSCRIBERS, SilenceWatch
from edgepack.agent.broker.takeovers import DELAY_S, TAKEN_OVER, TakeoverCounter


@pytest.fixture
def watch() -> SilenceWatch:
    """Return the watch of a device that just connected and reported."""
    watch = SilenceWatch("default", "cam-1")
    watch.connected(100.0)
    watch.sent_report(1)
    return watch


@pytest.mark.parametrize(
    ("code", "is_answered", "finding"),
    [
        (0, True, ""),
        (0, False, "no controller answers this device: is 'cam-1' enrolled"),
        (NO_SUBSCRIBERS, True, "nobody listens to what this device says"),
        (NO_SUBSCRIBERS, False, "nobody listens to what this device says"),
        (None, True, "the broker acknowledges nothing"),
    ],
)
def test_what_came_back_is_judged_once_when_its_time_is_over(
    watch: SilenceWatch, code: int | None, is_answered: bool, finding: str
) -> None:
    if code is not None:
        watch.acknowledged(1, code, "x")
    if is_answered:
        watch.answered()
    assert watch.finding(100.0 + ANSWER_S - 0.1) == ""
    found = watch.finding(100.0 + ANSWER_S)
    assert found.startswith(finding) if finding else not found
    assert watch.finding(200.0) == ""


def test_a_refusal_is_said_at_once(watch: SilenceWatch) -> None:
    watch.acknowledged(1, 0x87, "Not authorized")
    assert "takes no report of this device (Not authorized)" in watch.finding(100.1)


def test_the_acknowledgement_of_another_message_says_nothing_of_reports(
    watch: SilenceWatch,
) -> None:
    watch.acknowledged(2, 0x87, "Not authorized")
    assert watch.finding(100.1) == ""


def test_a_controller_that_answered_once_need_not_after_every_reconnection(
    watch: SilenceWatch,
) -> None:
    watch.answered()
    watch.connected(200.0)
    watch.sent_report(7)
    watch.acknowledged(7, 0, "Success")
    assert watch.finding(300.0) == ""


def test_a_connection_that_is_taken_over_is_left_to_the_other_for_longer_each_time() -> None:
    takeovers = TakeoverCounter("cam-1", random.Random(1))
    delays = [takeovers.note_loss(TAKEN_OVER, 60.0) for _ in range(8)]
    first_s, longest_s = DELAY_S
    assert all(delay is not None and delay >= 0.8 * first_s for delay in delays)
    assert delays[-1] is not None
    assert delays[-1] >= 0.8 * longest_s
    assert "another client uses this identity, 'cam-1'" in takeovers.trouble(0.0)
    assert takeovers.trouble(3 * longest_s) == "", "a long peace ends the trouble"
    assert takeovers.trouble(0.0) == ""


def test_only_several_short_connections_in_a_row_hint_at_another_client() -> None:
    takeovers = TakeoverCounter("cam-1", random.Random(1))
    assert [takeovers.note_loss("x", lasted_s) for lasted_s in (1.0, 1.0, 60.0, 1.0, 1.0)] == [
        None
    ] * 5
    assert takeovers.trouble(0.0) == ""
    assert takeovers.note_loss("x", 1.0) is not None
    assert "another client seems to use this identity" in takeovers.trouble(0.0)


def test_a_broker_that_violates_a_protocol_hints_at_no_other_client() -> None:
    takeovers = TakeoverCounter("cam-1", random.Random(1))
    reason = "the server violates the WebSocket protocol: invalid opcode"
    delays = [takeovers.note_loss(reason, 0.1, is_violation=True) for _ in range(4)]
    assert delays[:2] == [None, None]
    assert None not in delays[2:], "no device knocks every second"
    said = takeovers.trouble(0.0)
    assert "another" not in said
    assert reason in said


def test_a_device_that_only_guesses_at_another_client_does_not_say_what_the_broker_did() -> None:
    takeovers = TakeoverCounter("cam-1", random.Random(1))
    for _ in range(3):
        takeovers.note_loss("Unspecified error", 0.1)
    said = takeovers.trouble(0.0)
    assert "the broker ended" not in said
    assert "if there is no other, ask who runs the broker" in said

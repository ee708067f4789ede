"""Every topic of the protocol finds who takes it, and no other topic does."""

from collections.abc import Callable

import pytest

from edgepack.wire import topics
from edgepack.wire.router import Router

SHA = "ab" * 32
ROUTER = Router(
    {
        topics.desired("t", "cam-1"): "desired",
        topics.repair("t", "cam-1", topics.FILE): "repair",
        topics.broadcast("t", topics.FILE): "broadcast",
        **{topics.up("t", topics.DEVICE, kind): kind for kind in topics.UP_KINDS},
    }
)


@pytest.mark.parametrize(
    ("topic", "found"),
    [
        (topics.desired("t", "cam-1"), ("desired", "")),
        (topics.repair("t", "cam-1", SHA), ("repair", SHA)),
        (topics.broadcast("t", SHA), ("broadcast", SHA)),
        *((topics.up("t", "cam-9", kind), (kind, "cam-9")) for kind in topics.UP_KINDS),
    ],
)
def test_a_topic_finds_its_handler_and_what_it_names(topic: str, found: tuple[str, str]) -> None:
    assert ROUTER.find(topic) == found


@pytest.mark.parametrize(
    "topic",
    [
        "",
        "ep/1/t",
        topics.desired("t", "cam-2"),
        topics.desired("other", "cam-1"),
        topics.desired("t", topics.DEVICE),
        topics.broadcast("t", "AB" * 32),
        topics.broadcast("t", f"{SHA}0"),
        topics.broadcast("t", f"{SHA}\n"),
        topics.broadcast("t", topics.FILE),
        topics.repair("t", "cam-2", SHA),
        "ep/1/t/d/cam-1/up/reported/more",
        "ep/1/t/d/cam-1/up/nothing",
        "ep/1/t/d/a/b/up/need",
        "ep/1/t/d//up/need",
        f"ep/1/t/d/{'x' * 65}/up/need",
        "ep/1/t/d/+/up/need",
        "ep/1/t/d/up/need",
    ],
)
def test_any_other_topic_finds_nobody(topic: str) -> None:
    assert ROUTER.find(topic) is None


def test_what_overlaps_at_head_and_tail_is_no_match() -> None:
    take: Callable[[], None] = lambda: None  # noqa: E731
    assert Router({f"a/{topics.DEVICE}/a": take}).find("a/a") is None
    assert Router({f"a/{topics.DEVICE}/a": take}).find("a//a") is None

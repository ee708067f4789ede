"""Routing of topics to handlers."""

import re
from collections.abc import Mapping
from typing import Generic, TypeVar

from edgepack.wire.topics import OPEN_LEVELS

H = TypeVar("H")


class Router(Generic[H]):
    """Table of handlers by topic.

    Args:
        routes: A handler, or any value, by topic; a level of a topic may be `topics.DEVICE` or
            `topics.FILE`, which stand for any device or file.

    Example:
        ```python
        router = Router({topics.up("t", topics.DEVICE, "need"): take_need})
        assert router.find("ep/1/t/d/cam-7/up/need") == (take_need, "cam-7")
        ```
    """

    def __init__(self, routes: Mapping[str, H]) -> None:
        self._exact: dict[str, H] = {}
        self._open: list[tuple[str, re.Pattern[str], str, H]] = []
        for route, handler in routes.items():
            level = next((level for level in OPEN_LEVELS if level in route), None)
            if level is None:
                self._exact[route] = handler
            else:
                head, _, tail = route.partition(level)
                self._open.append((head, OPEN_LEVELS[level], tail, handler))

    def find(self, topic: str) -> tuple[H, str] | None:
        """Return the handler, and the name at the level that its route leaves open, or "".

        Returns:
            None if no route matches the topic, or the name is impossible.
        """
        if (exact := self._exact.get(topic)) is not None:
            return exact, ""
        for head, level, tail, handler in self._open:
            if topic.startswith(head) and topic.endswith(tail):
                name = topic[len(head) : len(topic) - len(tail)]
                if level.fullmatch(name):
                    return handler, name
        return None

"""A request on its way to the operation that answers."""

from collections.abc import Callable
from typing import NamedTuple

from edgepack.agent.server.connection import Exchange, Request
from edgepack.agent.server.http_messages import Response


class Call(NamedTuple):
    """Request with the open parts of its path.

    Attributes:
        request: The request.
        exchange: Takes the response.
        names: Open parts of the path, in order.
    """

    request: Request
    exchange: Exchange
    names: tuple[str, ...]


Act = Callable[[Call], Response | None]
"""Answers a request at once, or takes care of the response and returns None."""

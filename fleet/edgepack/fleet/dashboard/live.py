"""Live part of a page: sent again after each change (server-sent events).

Viewers of the same page share a rendering: the page is rendered once a second for any number of
    viewers.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from edgepack.errors import EdgepackError

log = logging.getLogger(__name__)

LOOK_S = 1.0
KEEPALIVE_S = 15.0
CHECK_S = 10.0
MAX_VIEWERS = 100
_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}

Render = Callable[[], Awaitable[str]]


class Live:
    """Streams of pages.

    Args:
        is_stopping: Whether the server is about to end: streams end then, too.
    """

    def __init__(self, is_stopping: Callable[[], bool]) -> None:
        self._is_stopping = is_stopping
        self._viewers = 0
        self._rendered: dict[str, tuple[float, asyncio.Task[str]]] = {}

    def stream(
        self, request: Request, render: Render, *, key: str, holds: Callable[[], Awaitable[bool]]
    ) -> Response:
        """Answer with a stream that lasts as long as somebody looks.

        Args:
            request: The viewer's request.
            render: Makes the live part.
            key: Key of pages that are equal.
            holds: Whether the viewer still has access.
        """
        if self._viewers >= MAX_VIEWERS:
            return Response(status_code=503, headers={"Retry-After": "30"})
        events = self._events(render, key, holds)
        return StreamingResponse(events, media_type="text/event-stream", headers=_HEADERS)

    async def _events(
        self, render: Render, key: str, holds: Callable[[], Awaitable[bool]]
    ) -> AsyncIterator[str]:
        self._viewers += 1
        shown, said_at, checked_at = "", time.monotonic(), time.monotonic()
        try:
            while not self._is_stopping():
                now = time.monotonic()
                if now - checked_at >= CHECK_S:
                    checked_at = now
                    if not await holds():
                        yield "event: over\ndata:\n\n"
                        return
                if (text := await self._render(render, key, now)) != shown:
                    shown, said_at = text, now
                    yield "".join(f"data: {line}\n" for line in text.splitlines()) + "\n"
                elif now - said_at >= KEEPALIVE_S:
                    said_at = now
                    yield ":\n\n"
                await asyncio.sleep(LOOK_S)
        except EdgepackError as error:
            log.warning("page=%s not sent because=%s", key, error.problem)  # the browser asks again
        finally:
            self._viewers -= 1
            if self._viewers == 0:
                self._rendered.clear()

    async def _render(self, render: Render, key: str, now: float) -> str:
        found = self._rendered.get(key)
        if found is None or now - found[0] >= LOOK_S * 0.9:
            found = (now, asyncio.ensure_future(render()))
            self._rendered[key] = found
            if len(self._rendered) > 2 * MAX_VIEWERS:
                self._rendered.pop(next(iter(self._rendered)))
        return await asyncio.shield(found[1])

"""Dispatch of requests by method and path, and the check of web pages."""

import ipaddress
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote, urlsplit

from edgepack.agent.server.answers import Answers
from edgepack.agent.server.call import Act, Call
from edgepack.agent.server.connection import Exchange, Request, error_response
from edgepack.agent.server.http_messages import HttpError, Response
from edgepack.agent.server.operations import OPERATIONS, TEXTS
from edgepack.agent.server.text_replies import text_error_response

_ALLOWED = {"GET": "GET, HEAD, OPTIONS", "POST": "POST, OPTIONS"}


class Routes:
    """Answers requests; used by the event loop's thread alone.

    Args:
        answers: Answers of all operations.
        origins: Origins of web pages that may use the server.
    """

    def __init__(self, answers: Answers, origins: tuple[str, ...]) -> None:
        self._origins = frozenset(origins)
        self._fixed: dict[str, tuple[str, Act, tuple[str, ...]]] = {}
        self._tree: dict[str, Any] = {}
        for one in OPERATIONS:
            path, act = one.path.strip("/"), getattr(answers, one.name)
            if "{" not in path:
                self._fixed[path] = (one.method, act, ())
                continue
            node = self._tree
            for part in path.split("/"):
                node = node.setdefault("{}" if part.startswith("{") else part, {})
            node[""] = (one.method, act)

    def handle(self, request: Request, exchange: Exchange) -> None:
        """Answer a request, now or later.

        Raises:
            HttpError: The request is wrong, or cannot be carried out now.
        """
        head = request.head
        cors = self._check_origin(request) if request.is_web else ""
        if cors:
            exchange = _WithFields(exchange, cors)
        describe = text_error_response if head.target.startswith(TEXTS) else error_response
        try:
            method, act, names = self._find(head.target)
        except HttpError as fault:
            exchange.respond(describe(fault))
            return
        if head.method == "OPTIONS":
            exchange.respond(Response(204, fields=f"Allow: {_ALLOWED[method]}\r\n"))
            return
        if head.method != method and (head.method, method) != ("HEAD", "GET"):
            error = describe(HttpError(405, f"{head.target[:200]} takes {method}"))
            exchange.respond(error._replace(fields=f"Allow: {_ALLOWED[method]}\r\n"))
            return
        try:
            response = act(Call(request, exchange, names))
        except HttpError as fault:
            response = describe(fault)
        if response is not None:
            exchange.respond(response)

    def _find(self, target: str) -> tuple[str, Act, tuple[str, ...]]:
        """Return method and function of a path, and the open parts of the path.

        Raises:
            HttpError: There is no such path.
        """
        path = target.partition("?")[0].strip("/")
        fixed = self._fixed.get(path)
        if fixed is not None:
            return fixed
        node, names = self._tree, []
        for part in path.split("/"):
            found = node.get(part) if part else None
            if found is None and part and "{}" in node:
                found = node["{}"]
                names.append(unquote(part) if "%" in part else part)
            if found is None:
                break
            node = found
        if found is None or "" not in node:
            raise HttpError(404, f"there is no {target[:200]}: GET /v2 describes the server")
        return (*node[""], tuple(names))

    def _check_origin(self, request: Request) -> str:
        """Return header fields for a web page.

        A page of any site can send requests to loopback, and can let its own name lead there.

        Raises:
            HttpError: The page may not use the server.
        """
        fields = request.head.fields
        host = fields.get(b"host", b"").decode("latin-1")
        if host and not _is_loopback(host):
            raise HttpError(403, f"the host {host[:100]!a} is not this device's loopback")
        origin = fields.get(b"origin", b"").decode("latin-1")
        if not origin:
            return ""
        if origin not in self._origins:
            raise HttpError(
                403, f"pages of {origin[:100]!a} may not use the server: name it in server.origins"
            )
        return (
            f"Access-Control-Allow-Origin: {origin}\r\nVary: Origin\r\n"
            "Access-Control-Allow-Methods: GET, HEAD, POST, OPTIONS\r\n"
            "Access-Control-Allow-Headers: *\r\nAccess-Control-Expose-Headers: *\r\n"
        )


class _WithFields:
    """Exchange that adds header fields to its response."""

    def __init__(self, exchange: Exchange, fields: str) -> None:
        self._exchange, self._fields = exchange, fields

    def respond(self, response: Response) -> None:
        self._exchange.respond(response._replace(fields=response.fields + self._fields))

    def on_lost(self, act: Callable[[], object], *, is_long: bool = False) -> None:
        self._exchange.on_lost(act, is_long=is_long)


def _is_loopback(host: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False

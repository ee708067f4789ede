"""Coming in with a token or a code, and leaving."""

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from edgepack.errors import FleetError
from edgepack.fleet.dashboard.guard import COOKIE, Visit, let_in, read_form
from edgepack.fleet.dashboard.render import page
from edgepack.fleet.server.access import Access

WRONG = "The fleet does not know this token."
OVER = "This link was used already, or is too old: each opens the dashboard once, for two minutes."


class Login:
    """The login.

    Args:
        access: Who is let in.
        is_tls: Whether browsers reach the dashboard by https alone.
    """

    def __init__(self, access: Access, *, is_tls: bool) -> None:
        self._access = access
        self._is_tls = is_tls

    async def ask(self, request: Request) -> Response:
        """The page that asks for a token; a code in the link is enough."""
        code, then = (request.query_params.get(name, "") for name in ("code", "then"))
        if not code:
            return self._page(then, "", 200)
        secret = await run_in_threadpool(self._access.use_code, code)
        if secret is None:
            return self._page("", OVER, 403)
        return let_in(RedirectResponse(_within(then), 303), secret, is_tls=self._is_tls)

    async def log_in(self, request: Request) -> Response:
        """Opens a session."""
        try:
            form = await read_form(request)
        except FleetError as error:
            return self._page("", error.problem, 422)
        then = form.get("then", "")
        secret = await run_in_threadpool(self._access.log_in, form.get("token", "").strip())
        if secret is None:
            return self._page(then, WRONG, 403)
        return let_in(RedirectResponse(_within(then), 303), secret, is_tls=self._is_tls)

    async def log_out(self, visit: Visit) -> Response:
        """Ends the session."""
        await run_in_threadpool(self._access.log_out, visit.request.cookies.get(COOKIE, ""))
        answer = RedirectResponse("/login", 303)
        answer.delete_cookie(COOKIE, httponly=True, samesite="strict", secure=self._is_tls)
        return answer

    def _page(self, then: str, problem: str, status: int) -> Response:
        return page("login", status=status, who=None, here="", then=_within(then), problem=problem)


def _within(then: str) -> str:
    """A path of the dashboard; anything else is the first page."""
    return then if then.startswith("/") and not then.startswith(("//", "/\\")) else "/"

"""Coming in with a token, a code or by a provider's word, and leaving."""

import base64
import secrets
from functools import partial

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from edgepack.decoding import decode_json
from edgepack.errors import FleetError
from edgepack.fleet.dashboard.guard import COOKIE, Visit, let_in, read_form
from edgepack.fleet.dashboard.render import local_path, page
from edgepack.fleet.oidc.provider import Attempt
from edgepack.fleet.server.access import Access

WRONG = "The fleet does not know this token."
NO_PROVIDER = "Nobody logs in at a provider here: edgepack fleet serve --oidc"
NOT_BEGUN = "This login was not begun in this browser, or took too long: begin it again."
ATTEMPT_S = 600
MAX_THEN = 500
OVER = "This link was used already, or is too old: each opens the dashboard once, for two minutes."


class Login:
    """The login.

    Args:
        access: Access control.
        is_tls: Whether browsers reach the dashboard by https alone.
    """

    def __init__(self, access: Access, *, is_tls: bool) -> None:
        self._access = access
        self._is_tls = is_tls
        # With this beginning no other host of the domain can set it.
        self._attempt_cookie = f"{'__Host-' if is_tls else ''}edgepack_login"

    async def ask(self, request: Request) -> Response:
        """Return the page that asks for a token; a code in the link is enough."""
        code, then = (request.query_params.get(name, "") for name in ("code", "then"))
        if not code:
            return self._page(then, "", 200)
        secret = await run_in_threadpool(self._access.use_code, code)
        if secret is None:
            return self._page("", OVER, 403)
        return let_in(RedirectResponse(local_path(then), 303), secret, is_tls=self._is_tls)

    async def log_in(self, request: Request) -> Response:
        """Open a session."""
        try:
            form = await read_form(request)
        except FleetError as error:
            return self._page("", error.problem, 422)
        then = form.get("then", "")
        secret = await run_in_threadpool(self._access.log_in, form.get("token", "").strip())
        if secret is None:
            return self._page(then, WRONG, 403)
        return let_in(RedirectResponse(local_path(then), 303), secret, is_tls=self._is_tls)

    async def go_to_provider(self, request: Request) -> Response:
        """Begin a login at the provider; only the browser knows the expected answer."""
        provider = self._access.oidc
        if provider is None:
            return self._page("", NO_PROVIDER, 404)
        attempt = Attempt(
            state=secrets.token_urlsafe(32),
            nonce=secrets.token_urlsafe(32),
            verifier=secrets.token_urlsafe(48),
            then=local_path(request.query_params.get("then", "")[:MAX_THEN]),
        )
        try:
            url = await self._access.ask_provider(partial(provider.login_url, attempt))
        except FleetError as error:
            return self._page(attempt.then, error.problem, 502)
        answer = RedirectResponse(url, 303)
        kept = base64.urlsafe_b64encode(msgspec.json.encode(attempt)).decode()
        # Lax, since it is another site that sends the browser back.
        answer.set_cookie(
            self._attempt_cookie,
            kept,
            max_age=ATTEMPT_S,
            httponly=True,
            samesite="lax",
            secure=self._is_tls,
        )
        return answer

    async def come_back(self, request: Request) -> Response:
        """Log in the user that the provider names."""
        provider, kept = self._access.oidc, request.cookies.get(self._attempt_cookie, "")
        if provider is None:
            return self._page("", NO_PROVIDER, 404)
        try:
            attempt = decode_json(base64.urlsafe_b64decode(kept), Attempt)
        except (ValueError, msgspec.DecodeError):
            return self._done(self._page("", NOT_BEGUN, 403))
        try:
            actor = await self._access.ask_provider(
                partial(provider.finish, attempt, request.query_params)
            )
        except FleetError as error:
            return self._done(self._page(attempt.then, error.problem, 403))
        secret = await run_in_threadpool(self._access.let_in, actor)
        # A page of our own, and no redirection: that would be the other site's still, and the
        # browser would not show the session that it just got.
        answer = page(
            "login_done",
            status=200,
            who=None,
            here="",
            then=local_path(attempt.then),
            name=actor.name,
        )
        return self._done(let_in(answer, secret, is_tls=self._is_tls))

    def _done(self, answer: Response) -> Response:
        answer.delete_cookie(
            self._attempt_cookie, httponly=True, samesite="lax", secure=self._is_tls
        )
        return answer

    async def log_out(self, visit: Visit) -> Response:
        """End the session."""
        await run_in_threadpool(self._access.log_out, visit.request.cookies.get(COOKIE, ""))
        answer = RedirectResponse("/login", 303)
        answer.delete_cookie(COOKIE, httponly=True, samesite="strict", secure=self._is_tls)
        return answer

    def _page(self, then: str, problem: str, status: int) -> Response:
        provider = self._access.oidc
        return page(
            "login",
            status=status,
            who=None,
            here="",
            then=local_path(then),
            problem=problem,
            provider=provider.settings.title if provider is not None else "",
        )

"""Access to pages, and protection of forms.

A session lies in a cookie that no script reads and no other site sends. A form is accepted only
from our own pages (`Origin`) and with the secret of our own pages.
"""

import hmac
from collections.abc import Awaitable, Callable
from urllib.parse import parse_qsl, urlsplit

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from edgepack.errors import EdgepackError, FleetError
from edgepack.fleet.dashboard.render import link, page
from edgepack.fleet.documents.access import Actor, Role
from edgepack.fleet.server.access import SESSION_S, Access, LoggedIn
from edgepack.fleet.server.connections import note_known

COOKIE = "edgepack_session"
MAX_FORM_BYTES = 64 * 1024
MAX_FIELDS = 60


class Visit(msgspec.Struct, frozen=True, kw_only=True):
    """Visit of a user to a page.

    Attributes:
        who: The user.
        request: The request.
        form: The form's fields; empty without a form.
    """

    who: LoggedIn
    request: Request
    form: dict[str, str] = {}

    @property
    def actor(self) -> Actor:
        """Actor of the visit."""
        return self.who.actor

    def path(self, name: str) -> str:
        """Return a part of the page's path."""
        return str(self.request.path_params[name])

    def asked(self, name: str) -> str:
        """Return a parameter of the query; "" if missing."""
        return self.request.query_params.get(name, "")


View = Callable[[Visit], Awaitable[Response]]
Endpoint = Callable[[Request], Awaitable[Response]]


def guarded(access: Access, view: View, *, role: Role = "viewer") -> Endpoint:
    """Return a page with access control: show the page, redirect to the login, or show the reason
    for the rejection.
    """

    async def endpoint(request: Request) -> Response:
        who = await run_in_threadpool(access.of_session, request.cookies.get(COOKIE, ""))
        if who is None:
            back = request.url.path if request.method == "GET" else ""
            return RedirectResponse(link("/login", then=back if back != "/" else ""), 303)
        note_known(request)
        form: dict[str, str] = {}
        try:
            if request.method == "POST":
                form = await read_form(request)
                given = form.get("form_token", "")
                if not hmac.compare_digest(given.encode(), who.form_token.encode()):
                    raise FleetError("this form is not from a page of this session: open it again")
            if not who.actor.may(role):
                raise FleetError(
                    f"{who.actor.name} is a {who.actor.role}, and this takes the role {role}",
                    remedy="log in with another token",
                )
            return await view(Visit(who=who, request=request, form=form))
        except EdgepackError as error:
            status = 404 if request.method == "GET" else 422
            return page("problem", status=status, who=who, here="", error=error)

    return endpoint


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of the form.

    Raises:
        FleetError: The form comes from another site, or is too large.
    """
    origin = request.headers.get("origin", "")
    if origin and urlsplit(origin).netloc != request.headers.get("host", ""):
        raise FleetError("this form comes from another site")
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_FORM_BYTES:
            raise FleetError(f"a form has at most {MAX_FORM_BYTES} bytes")
    try:
        text = body.decode()
        fields = parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_FIELDS)
    except (UnicodeDecodeError, ValueError) as error:
        raise FleetError("the form cannot be read") from error
    return dict(fields)


def let_in(response: Response, secret: str, *, is_tls: bool) -> Response:
    """Give the browser its session."""
    response.set_cookie(
        COOKIE, secret, max_age=int(SESSION_S), httponly=True, samesite="strict", secure=is_tls
    )
    return response

"""Access to the server: by a token in each request, or by a session opened with a token.

The token in the fleet's folder is an administrator's. A session ends with its token.
"""

import asyncio
import hashlib
import hmac
import logging
import secrets
import time
from collections.abc import Callable
from typing import TypeVar

import msgspec
from starlette.concurrency import run_in_threadpool

from edgepack.decoding import convert_value
from edgepack.errors import FleetError
from edgepack.fleet.database import access
from edgepack.fleet.database.schema import SessionRow, TokenRow
from edgepack.fleet.database.store import Store
from edgepack.fleet.database.views import view_of
from edgepack.fleet.documents.access import (
    ROLES,
    Actor,
    LoginCode,
    NewToken,
    Role,
    TokenRequest,
    TokenView,
)
from edgepack.fleet.oidc.fetching import ProviderAwayError
from edgepack.fleet.oidc.provider import Provider
from edgepack.wire import topics

log = logging.getLogger(__name__)

T = TypeVar("T")

SESSION_S = 12 * 3600.0
CODE_S = 120.0
_CODE = "code:"
MAX_SECRET = 200
DAY_S = 24 * 3600.0
MAX_VALID_S = 3660 * DAY_S
PROVIDER_THREADS = 4
"""Of the server's 40 threads, so many may wait for the provider."""
MAX_LOGINS = 64
"""Logins and ID tokens that wait for those threads."""


class LoggedIn(msgspec.Struct, frozen=True, kw_only=True):
    """A session that holds.

    Attributes:
        actor: The user.
        form_token: Secret that every form of the session must carry, unknown to other sites.
    """

    actor: Actor
    form_token: str


class Access:
    """Lets people in.

    Args:
        store: The fleet's database.
        token: The token in the fleet's folder.
        oidc: Provider for further users.
    """

    def __init__(self, store: Store, token: str, oidc: Provider | None = None) -> None:
        self._store, self.oidc = store, oidc
        self._token_hash = access.digest_of(token)
        self._turns = asyncio.Semaphore(PROVIDER_THREADS)
        self._logins = 0

    def of_token(self, token: str) -> Actor | None:
        """Return the owner of a token of the fleet; None for any other text."""
        return self._of_hash(access.digest_of(token)) if len(token) <= MAX_SECRET else None

    async def of_bearer(self, token: str) -> Actor | None:
        """Return the owner of a token of the fleet, or of an ID token; None for any other text.

        Raises:
            FleetError: The provider cannot be asked now.
        """
        if len(token) <= MAX_SECRET or self.oidc is None:
            return await run_in_threadpool(self.of_token, token)
        return await self.ask_provider(lambda: self._of_id_token(token))

    async def ask_provider(self, ask: Callable[[], T]) -> T:
        """Run a call that may wait for the provider in a small pool of threads.

        Requests with a token of the fleet do not wait for those threads.

        Raises:
            FleetError: Too many logins are waiting already, or an error of `ask`.
        """
        if self._logins >= MAX_LOGINS:
            raise FleetError("too many people log in at once", remedy="try again in a moment")
        self._logins += 1
        try:
            async with self._turns:
                return await run_in_threadpool(ask)
        finally:
            self._logins -= 1

    def _of_id_token(self, token: str) -> Actor | None:
        try:
            return self.oidc.of_token(token) if self.oidc is not None else None
        except ProviderAwayError:
            raise
        except FleetError as error:
            log.info("a bearer of an ID token is refused because=%s", error.problem)
            return None

    def of_session(self, secret: str) -> LoggedIn | None:
        """Return the user of a session; None for an unknown or ended session."""
        if not secret or len(secret) > MAX_SECRET:
            return None
        with self._store.reading() as session:
            row = access.find_session(session, secret, time.time())
        actor = self._of_row(row) if row is not None else None
        if actor is None:
            return None
        form_token = hmac.new(secret.encode(), b"form", hashlib.sha256).hexdigest()
        return LoggedIn(actor=actor, form_token=form_token)

    def log_in(self, token: str) -> str | None:
        """Open a session for a token; return the browser's cookie, None for an invalid token."""
        if len(token) > MAX_SECRET or self.of_token(token) is None:
            return None
        return self._open("", access.digest_of(token), SESSION_S)

    def make_code(self, token: str) -> LoginCode:
        """Return a code that opens a single session for this token, within two minutes.

        Raises:
            ValueError: The token is invalid.
        """
        if len(token) > MAX_SECRET or self.of_token(token) is None:
            raise ValueError("nobody's token")
        code = self._open(_CODE, access.digest_of(token), CODE_S)
        return LoginCode(code=code, valid_s=CODE_S)

    def use_code(self, code: str) -> str | None:
        """Open a session for a code, once; return the cookie, None for an expired code."""
        if len(code) > MAX_SECRET:
            return None
        now = time.time()
        with self._store.transaction() as session:
            row = access.find_session(session, _CODE + code, now)
            access.close_session(session, _CODE + code)
        return self._open("", row.token_hash, SESSION_S) if row is not None else None

    def let_in(self, actor: Actor) -> str:
        """Open a session for a user named by the provider; return the browser's cookie."""
        return self._open("", "", SESSION_S, actor)

    def log_out(self, secret: str) -> None:
        """End a session."""
        with self._store.transaction() as session:
            access.close_session(session, secret[:MAX_SECRET])

    def tokens(self) -> tuple[TokenView, ...]:
        """Return all tokens except the token in the fleet's folder."""
        with self._store.reading() as session:
            return tuple(view_of(TokenView, row) for row in access.list_tokens(session))

    def make_token(self, request: TokenRequest, by: str) -> NewToken:
        """Make a token.

        Raises:
            FleetError: The name is invalid or taken, or the validity is invalid.
        """
        try:
            topics.check_name(request.name, "token")
        except ValueError as error:
            raise FleetError(
                str(error), remedy="edgepack fleet tokens make alice --role operator"
            ) from error
        if request.valid_s is not None and not 0 < request.valid_s <= MAX_VALID_S:
            raise FleetError(
                f"a token is valid for up to {MAX_VALID_S / DAY_S:,.0f} days",
                remedy="--days 90",
            )
        secret, now = secrets.token_urlsafe(32), time.time()
        row = TokenRow(
            name=request.name,
            role=request.role,
            hash=access.digest_of(secret),
            made_at=now,
            made_by=by,
            expires_at=None if request.valid_s is None else now + request.valid_s,
        )
        with self._store.transaction(by) as session:
            access.add_token(session, row)
            return NewToken(token=secret, view=view_of(TokenView, row))

    def revoke_token(self, name: str, by: str) -> TokenView:
        """Revoke a token and end its sessions.

        Raises:
            FleetError: There is none of that name.
        """
        with self._store.transaction(by) as session:
            return view_of(TokenView, access.revoke_token(session, name, time.time()))

    def _open(self, kind: str, token_hash: str, valid_s: float, actor: Actor | None = None) -> str:
        secret, now = secrets.token_urlsafe(32), time.time()
        row = SessionRow(
            hash=access.digest_of(kind + secret),
            token_hash=token_hash,
            expires_at=now + valid_s,
            actor=actor.name if actor else "",
            role=actor.role if actor else "",
        )
        with self._store.transaction() as session:
            access.open_session(session, row, now)
        return secret

    def _of_row(self, row: SessionRow) -> Actor | None:
        if row.token_hash:
            return self._of_hash(row.token_hash)
        if self.oidc is None or row.role not in ROLES:
            return None  # Nobody logs in at a provider any more.
        return Actor(name=row.actor, role=convert_value(row.role, Role))

    def _of_hash(self, token_hash: str) -> Actor | None:
        if secrets.compare_digest(token_hash, self._token_hash):
            return Actor(name="token", role="admin")
        with self._store.reading() as session:
            row = access.find_token(session, token_hash, time.time())
        if row is None or row.role not in ROLES:
            return None
        return Actor(name=f"token {row.name}", role=convert_value(row.role, Role))

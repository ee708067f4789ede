"""OpenID Connect provider: its endpoints, and checks of its answers.

Authorization code with PKCE (RFC 7636); of an ID token all that OpenID Connect Core, section
3.1.3.7, wants is checked, and its signature by an algorithm of our own list.
"""

import base64
import hashlib
import hmac
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, RSAKey

from edgepack.decoding import convert_value
from edgepack.errors import FleetError
from edgepack.fleet.documents.access import Actor
from edgepack.fleet.oidc.fetching import ProviderAwayError, check_endpoint, fetch
from edgepack.fleet.oidc.refreshed import Backoff, Refreshed
from edgepack.fleet.oidc.settings import OidcSettings
from edgepack.text import printable

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512")
"""Signatures by keys of which we know the public half; never `none`, never a shared secret."""
KEEP_S = 3600.0
AGAIN_S = 10.0
"""How soon keys are asked for again, because a token names one that we do not know."""
LEEWAY_S = 60
MAX_AGE_S = 15 * 60
"""How old a token of a login may be."""
MAX_TOKEN = 20_000
MAX_MOMENT = 2**53
"""Seconds since the epoch that a float still tells apart."""
MAX_NAME = 100

MAX_KEYS = 20
LEAST_RSA_BITS = 2048
"""RFC 7518 asks for as many."""

Fetch = Callable[..., dict[str, Any]]
Key = RSAKey | ECKey


class Endpoints(msgspec.Struct, frozen=True, kw_only=True):
    """Endpoints of the provider."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """A started login: secrets of the browser that started the login.

    Attributes:
        state: Comes back with the code.
        nonce: Comes back in the ID token.
        verifier: Of PKCE; the provider received its digest.
        then: Where to go afterwards.
    """

    state: str
    nonce: str
    verifier: str
    then: str


class Provider:
    """The provider of a fleet.

    Args:
        settings: How people log in.
        secret: The client's; "" for a public client.
        get: Asks the provider; see `fetch`.
        clock: Seconds since the epoch.
    """

    def __init__(
        self,
        settings: OidcSettings,
        secret: str,
        *,
        get: Fetch = fetch,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.settings, self._secret = settings, secret
        self._get, self._clock = get, clock
        self._endpoints = Refreshed(self._ask_endpoints, clock)
        self._keys = Refreshed(self._ask_keys, clock)
        self._exchanges = Backoff(clock)

    def login_url(self, attempt: Attempt) -> str:
        """Return the URL of the provider's login page.

        Raises:
            FleetError: The provider does not say.
        """
        endpoint = self._discover().authorization_endpoint
        digest = hashlib.sha256(attempt.verifier.encode()).digest()
        query = urlencode(
            {
                "response_type": "code",
                "client_id": self.settings.client_id,
                "redirect_uri": self.settings.redirect_url,
                "scope": " ".join(self.settings.scopes),
                "state": attempt.state,
                "nonce": attempt.nonce,
                "code_challenge": base64.urlsafe_b64encode(digest).rstrip(b"=").decode(),
                "code_challenge_method": "S256",
            }
        )
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{query}"

    def finish(self, attempt: Attempt, answer: Mapping[str, str]) -> Actor:
        """Return the logged-in user.

        1. The answer belongs to this attempt and this provider (RFC 9207, if supported).
        2. The code is exchanged for an ID token.
        3. The token is of this attempt, and its owner has a role.

        Args:
            attempt: The browser's stored attempt.
            answer: The query of the provider's redirect.

        Raises:
            FleetError: Nobody that may come in; why.
        """
        # 1.
        if not hmac.compare_digest(answer.get("state", "").encode(), attempt.state.encode()):
            raise FleetError("this login was not begun here: begin it again")
        if answer.get("iss", self.settings.issuer) != self.settings.issuer:
            raise FleetError("the answer is another provider's")
        if error := answer.get("error", ""):
            raise FleetError(f"the provider refuses: {printable(error[:80])}")
        # 2.
        found = self._exchange(answer.get("code", ""), attempt.verifier)
        token = found.get("id_token")
        if not isinstance(token, str):
            raise FleetError("the provider gave no ID token")
        # 3.
        claims = self._judge(token)
        nonce = claims.get("nonce")
        if not isinstance(nonce, str) or not hmac.compare_digest(
            nonce.encode(errors="replace"), attempt.nonce.encode()
        ):
            raise FleetError("the ID token is of another login")
        if _moment(claims, "iat") < self._clock() - MAX_AGE_S:
            raise FleetError("the ID token is an old one")
        return self._actor(claims)

    def of_token(self, token: str) -> Actor:
        """Return the user of an ID token.

        Raises:
            FleetError: Nobody's that may come in; why.
        """
        return self._actor(self._judge(token))

    def _exchange(self, code: str, verifier: str) -> dict[str, Any]:
        endpoints, client = self._discover(), self.settings.client_id
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self.settings.redirect_url,
            "code_verifier": verifier,
            "client_id": client,
        }
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        if self._secret:
            if "client_secret_basic" in endpoints.token_endpoint_auth_methods_supported:
                pair = f"{quote(client, safe='')}:{quote(self._secret, safe='')}"
                headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
            else:
                form["client_secret"] = self._secret
        self._exchanges.check()
        try:
            found = self._get(endpoints.token_endpoint, urlencode(form).encode(), headers)
        except ProviderAwayError as error:
            self._exchanges.note(error)
            raise
        self._exchanges.note(None)
        return found

    def _judge(self, token: str) -> dict[str, Any]:
        if len(token) > MAX_TOKEN:
            raise FleetError("the ID token is too long")
        claims = self._verified(token)
        audience = claims.get("aud")
        for_whom = [audience] if isinstance(audience, str) else audience
        client, now = self.settings.client_id, self._clock()
        if claims.get("iss") != self.settings.issuer:
            raise FleetError("the ID token is another provider's")
        if not isinstance(for_whom, list) or client not in for_whom:
            raise FleetError("the ID token is for somebody else")
        if claims.get("azp", client) != client or (len(for_whom) > 1 and "azp" not in claims):
            raise FleetError("the ID token was given to somebody else")
        expires, issued = _moment(claims, "exp"), _moment(claims, "iat")
        if expires <= now - LEEWAY_S:
            raise FleetError("the ID token is over")
        if issued > now + LEEWAY_S or _moment(claims, "nbf", issued) > now + LEEWAY_S:
            raise FleetError("the ID token is of the future: do the clocks agree?")
        if not isinstance(claims.get("sub"), str) or not claims["sub"]:
            raise FleetError("the ID token names nobody")
        return claims

    def _verified(self, token: str) -> dict[str, Any]:
        """Return the claims of a token that the provider signed; its newest keys may be asked for
        once.
        """
        for most_age_s in (KEEP_S, AGAIN_S):
            keys, are_new = self._keys.get(most_age_s)
            for key in keys:
                with suppress(JoseError, ValueError, TypeError, KeyError, RecursionError):
                    return dict(jwt.decode(token, key, algorithms=list(ALGORITHMS)).claims)
            if are_new:
                break
        raise FleetError("the ID token is not the provider's")

    def _discover(self) -> Endpoints:
        return self._endpoints.get(KEEP_S)[0]

    def _ask_endpoints(self) -> Endpoints:
        url = self.settings.issuer.rstrip("/") + "/.well-known/openid-configuration"
        try:
            found = convert_value(self._get(url), Endpoints)
        except msgspec.ValidationError as error:
            raise FleetError("the provider does not say where to log in", found_in=url) from error
        if found.issuer != self.settings.issuer:
            raise FleetError(
                f"the provider calls itself {found.issuer[:80]!a}",
                found_in=url,
                remedy="write its issuer letter by letter",
            )
        check_endpoint(found.authorization_endpoint)
        return found

    def _ask_keys(self) -> Sequence[Key]:
        url = self._discover().jwks_uri
        found = self._get(url).get("keys")
        keys = _read_keys(found if isinstance(found, list) else [])
        if not keys:
            raise FleetError("the provider has no key that signs", found_in=url)
        return keys

    def _actor(self, claims: dict[str, Any]) -> Actor:
        named = claims.get(self.settings.name_claim)
        name = printable(str(named if isinstance(named, str) and named else claims["sub"]))
        role = self.settings.role_of(claims)
        if role is None:
            raise FleetError(
                f"{name[:MAX_NAME]} has no role here: the claim {self.settings.roles_claim!r} "
                "gives none",
                remedy="an administrator maps groups to roles in the settings of --oidc",
            )
        # Whom a claim names may change, or be chosen; whom the provider means does not.
        subject, name = printable(claims["sub"])[:MAX_NAME], name[:MAX_NAME]
        known_by = name if name == subject else f"{name} ({subject})"
        return Actor(name=f"oidc {known_by}", role=role)


def _moment(claims: dict[str, Any], name: str, otherwise: float | None = None) -> float:
    """Return a time of a token, seconds since the epoch.

    Raises:
        FleetError: The token has no such claim, or the value is not a finite number: JSON's readers
            accept `Infinity` and `NaN`, and `NaN` is neither before nor after any moment.
    """
    found: Any = claims.get(name, otherwise)
    is_number = isinstance(found, int | float) and not isinstance(found, bool)
    if is_number and -MAX_MOMENT < found < MAX_MOMENT:
        return float(found)
    raise FleetError(f"the ID token has no {name} that is a time")


def _read_keys(found: list[Any]) -> Sequence[Key]:
    """Return public signing keys; skip other and invalid keys."""
    kinds: dict[Any, type[Key]] = {"RSA": RSAKey, "EC": ECKey}
    keys: list[Key] = []
    for one in found[:MAX_KEYS]:
        if isinstance(one, dict) and one.get("use", "sig") == "sig" and not _is_weak(one):
            with suppress(JoseError, ValueError, TypeError, KeyError):
                keys.append(kinds[one["kty"]].import_key(one))
    return keys


def _is_weak(key: dict[str, Any]) -> bool:
    """Return True if the key is an RSA key that is too short or invalid."""
    if key.get("kty") != "RSA":
        return False
    try:
        modulus = base64.urlsafe_b64decode(f"{key['n']}==")
    except (KeyError, ValueError):
        return True
    return int.from_bytes(modulus).bit_length() < LEAST_RSA_BITS

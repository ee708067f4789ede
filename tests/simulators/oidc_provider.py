"""A provider of OpenID Connect without a network: real signatures, PKCE checks, lies on request."""

import base64
import hashlib
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

from joserfc import jwt
from joserfc.jwk import ECKey, RSAKey

from edgepack.errors import FleetError

ISSUER = "https://login.example/realm"
CLIENT, SECRET, CODE = "edgepack", "s3cret", "code-1"
NOW = 1_800_000_000.0


class SimulatedProvider:
    """Give `get` to a `Provider`.

    Attributes:
        claims: Changes of the next ID token's claims; None as a value removes a claim.
        header: Changes its header.
        document: Changes of the discovery document.
        asked: The paths that were asked for.
    """

    def __init__(self) -> None:
        self.keys: list[Any] = [ECKey.generate_key("P-256", {"kid": "k1", "use": "sig"})]
        self.claims: dict[str, Any] = {}
        self.header: dict[str, Any] = {}
        self.document: dict[str, Any] = {}
        self.asked: list[str] = []
        self.form: dict[str, str] = {}
        self.headers: dict[str, str] = {}
        self.key: Any = None
        self.wrap: Callable[[str], str] = lambda token: token
        self._challenge, self._nonce = "", ""

    def visit(self, url: str) -> dict[str, str]:
        """Simulate a browser: log in, and return the redirect's query."""
        query = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
        assert (query["response_type"], query["code_challenge_method"]) == ("code", "S256")
        assert query["client_id"] == CLIENT
        self._challenge, self._nonce = query["code_challenge"], query["nonce"]
        return {"code": CODE, "state": query["state"]}

    def get(
        self, url: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> dict[str, Any]:
        path = url.removeprefix(ISSUER)
        self.asked.append(path)
        if path == "/.well-known/openid-configuration":
            return {
                "issuer": ISSUER,
                "authorization_endpoint": f"{ISSUER}/authorize",
                "token_endpoint": f"{ISSUER}/token",
                "jwks_uri": f"{ISSUER}/keys",
            } | self.document
        if path == "/keys":
            strange = {"kty": "strange", "kid": "k0"}
            return {"keys": [strange, *(key.as_dict(private=False) for key in self.keys)]}
        assert path == "/token"
        assert body is not None
        self.form = {name: values[0] for name, values in parse_qs(body.decode()).items()}
        self.headers = headers or {}
        digest = hashlib.sha256(self.form["code_verifier"].encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        if self.form["code"] != CODE or challenge != self._challenge:
            raise FleetError("the provider answered HTTP status 400")
        return {"id_token": self.token()}

    def token(self) -> str:
        claims = {
            "iss": ISSUER,
            "aud": CLIENT,
            "sub": "u-1",
            "email": "alice@example",
            "groups": ["ml-team"],
            "iat": int(NOW),
            "exp": int(NOW) + 300,
            "nonce": self._nonce,
        } | self.claims
        key = self.key or self.keys[-1]
        algorithm = "RS256" if isinstance(key, RSAKey) else "ES256"
        header = {"alg": algorithm, "kid": self.keys[-1].kid} | self.header
        said = {name: value for name, value in claims.items() if value is not None}
        return self.wrap(jwt.encode(header, said, key))

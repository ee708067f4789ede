"""Methods of `FleetClient` for users and tokens."""

from urllib.parse import quote

from edgepack.fleet.client.connection import Connection
from edgepack.fleet.documents.access import (
    LoginCode,
    LoginLink,
    NewToken,
    Role,
    TokenRequest,
    TokenView,
)


class AccessMethods:
    """The methods of a `FleetClient` that are about tokens and the dashboard's login."""

    _connection: Connection

    def login_link(self) -> LoginLink:
        """Return a link that opens the dashboard once, without a token, for two minutes.

        Returns:
            The link; anyone with the link has the rights of this token.

        Raises:
            FleetError: Nobody serves there, or the token is wrong.

        Example:
            ```python
            link = fleet.login_link()
            print(f"open {link.url} within {link.valid_s:.0f} s")
            ```
        """
        made = self._connection.post("/v1/login-codes", LoginCode)
        url = f"{self._connection.url}/login?code={made.code}"
        return LoginLink(url=url, valid_s=made.valid_s)

    def tokens(self) -> tuple[TokenView, ...]:
        """Return the tokens that let people and programs in, without their secrets.

        Returns:
            By name, without the token in the fleet's folder.

        Raises:
            FleetError: Nobody serves there, or this token is not an administrator's.

        Example:
            ```python
            print({token.name: token.role for token in fleet.tokens()})
            ```
        """
        return self._connection.get("/v1/tokens", tuple[TokenView, ...])

    def make_token(self, name: str, *, role: Role, valid_s: float | None = None) -> NewToken:
        """Make a token.

        Args:
            name: Name in lists and in the audit log.
            role: `viewer` looks, `operator` rolls out and takes back, too, `admin` does all.
            valid_s: Validity in seconds; None until the token is revoked.

        Returns:
            The token; its secret is returned only once.

        Raises:
            FleetError: The name is taken or invalid, or this token is not an administrator's.

        Example:
            ```python
            made = fleet.make_token("alice", role="operator")
            as_alice = FleetClient(token=made.token)
            ```
        """
        request = TokenRequest(name=name, role=role, valid_s=valid_s)
        return self._connection.post("/v1/tokens", NewToken, request)

    def revoke_token(self, name: str) -> TokenView:
        """Revoke a token and end its sessions.

        Args:
            name: The token's name.

        Returns:
            The revoked token.

        Raises:
            FleetError: There is none of that name, or this token is not an administrator's.

        Example:
            ```python
            fleet.make_token("bob", role="viewer")
            fleet.revoke_token("bob")
            ```
        """
        return self._connection.delete(f"/v1/tokens/{quote(name, safe='')}", TokenView)

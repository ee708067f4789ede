"""Documents of the API about users and roles."""

from typing import Literal, get_args

import msgspec

Role = Literal["viewer", "operator", "admin"]
ROLES: tuple[Role, ...] = get_args(Role)
"""Each may do what those before it may: look; roll out and take back; change devices and tokens."""


class Actor(msgspec.Struct, frozen=True, kw_only=True):
    """Actor of a request.

    Attributes:
        name: Name in the audit log: `token` for the token in the fleet's folder, else `token NAME`.
        role: The actor's role.
    """

    name: str
    role: Role

    def may(self, role: Role) -> bool:
        """Return True if the actor has the rights of a role."""
        return ROLES.index(self.role) >= ROLES.index(role)


class LoginCode(msgspec.Struct, frozen=True, kw_only=True):
    """Code that logs a browser in once, instead of a token.

    Attributes:
        code: The code.
        valid_s: Validity, seconds.
    """

    code: str
    valid_s: float


class LoginLink(msgspec.Struct, frozen=True, kw_only=True):
    """A link that opens the dashboard once.

    Attributes:
        url: The link.
        valid_s: Validity, seconds.
    """

    url: str
    valid_s: float


class TokenRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A token to make.

    Attributes:
        name: Name in lists and in the audit log.
        role: Rights of its owner.
        valid_s: Validity in seconds; None until the token is revoked.
    """

    name: str
    role: Role
    valid_s: float | None = None


class TokenView(msgspec.Struct, frozen=True, kw_only=True):
    """A token, without the secret: that is known to its owner alone.

    Attributes:
        name: The token's name.
        role: Rights of its owner.
        made_at: Creation time, seconds since the epoch (UTC).
        made_by: Actor that made the token.
        expires_at: Expiry, seconds since the epoch (UTC); None for never.
    """

    name: str
    role: str
    made_at: float
    made_by: str
    expires_at: float | None


class NewToken(msgspec.Struct, frozen=True, kw_only=True):
    """A token that was just made.

    Attributes:
        token: The secret; returned only once, and stored nowhere.
        view: The token without its secret.
    """

    token: str
    view: TokenView

"""Documents of the API about users and roles."""

from typing import Literal, get_args

import msgspec

Role = Literal["viewer", "operator", "admin"]
ROLES: tuple[Role, ...] = get_args(Role)
"""Each may do what those before it may: look; roll out and take back; change devices and tokens."""


class Actor(msgspec.Struct, frozen=True, kw_only=True):
    """Actor of a request.

    Attributes:
        name: As the audit log names them: `token` for the one in the fleet's folder, else `token
            NAME`.
        role: What they may do.
    """

    name: str
    role: Role

    def may(self, role: Role) -> bool:
        """Return True if they may do what a role may."""
        return ROLES.index(self.role) >= ROLES.index(role)


class LoginCode(msgspec.Struct, frozen=True, kw_only=True):
    """Code that logs a browser in once, instead of a token.

    Attributes:
        code: The code.
        valid_s: How long it can be used, seconds.
    """

    code: str
    valid_s: float


class LoginLink(msgspec.Struct, frozen=True, kw_only=True):
    """A link that opens the dashboard once.

    Attributes:
        url: The link.
        valid_s: How long it can be used, seconds.
    """

    url: str
    valid_s: float


class TokenRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A token to make.

    Attributes:
        name: What it is called, in lists and in the audit log.
        role: What its owner may do.
        valid_s: Validity in seconds; None until the token is revoked.
    """

    name: str
    role: Role
    valid_s: float | None = None


class TokenView(msgspec.Struct, frozen=True, kw_only=True):
    """A token, without the secret: that is known to its owner alone.

    Attributes:
        name: What it is called.
        role: What its owner may do.
        made_at: When it was made, seconds since the epoch (UTC).
        made_by: Who made it.
        expires_at: When it is over, seconds since the epoch (UTC); None for never.
    """

    name: str
    role: str
    made_at: float
    made_by: str
    expires_at: float | None


class NewToken(msgspec.Struct, frozen=True, kw_only=True):
    """A token that was just made.

    Attributes:
        token: The secret; it is returned only once, and kept nowhere.
        view: What is known of it from now on.
    """

    token: str
    view: TokenView

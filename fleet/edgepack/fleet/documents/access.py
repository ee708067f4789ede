"""Who may do what: as the API takes and gives it."""

from typing import Literal, get_args

import msgspec

Role = Literal["viewer", "operator", "admin"]
ROLES: tuple[Role, ...] = get_args(Role)
"""Each may do what those before it may: look; roll out and take back; change devices and tokens."""


class Actor(msgspec.Struct, frozen=True, kw_only=True):
    """Who asks.

    Attributes:
        name: As the audit log names them: `token` for the one in the fleet's folder, else `token
            NAME`.
        role: What they may do.
    """

    name: str
    role: Role

    def may(self, role: Role) -> bool:
        """Whether they may do what a role may."""
        return ROLES.index(self.role) >= ROLES.index(role)


class LoginCode(msgspec.Struct, frozen=True, kw_only=True):
    """What lets a browser in once, instead of a token.

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

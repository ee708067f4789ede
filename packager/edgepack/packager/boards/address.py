"""Address of a board: `ssh://USER@HOST[:PORT][/PATH/OF/PYTHON]`."""

import re

import msgspec

from edgepack.errors import BuildError

PYTHON = "python3"
_MOST_PORT = 65_535
_ADDRESS = re.compile(
    r"ssh://(?:(?P<user>\w[\w.-]*)@)?(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<host>\w[\w.-]*))"
    r"(?::(?P<port>[0-9]{1,5}))?(?:/?|(?P<python>/[\w./+-]+))",
    re.ASCII,
)
"""No part of an address begins with a hyphen, so that `ssh` takes no part for an option."""


class BoardAddress(msgspec.Struct, frozen=True, kw_only=True):
    """Address of a board.

    Attributes:
        user: User there; "" leaves the choice to ssh's own settings.
        host: Host, or its alias in ssh's own settings.
        port: Port; None likewise.
        python: Interpreter there.
    """

    user: str
    host: str
    port: int | None
    python: str = PYTHON

    @property
    def name(self) -> str:
        """Return the host, with a port that was given."""
        return self.host if self.port is None else f"{self.host}:{self.port}"

    @property
    def ssh_words(self) -> tuple[str, ...]:
        """Return the arguments of `ssh` that name the board."""
        port = () if self.port is None else ("-p", str(self.port))
        user = ("-l", self.user) if self.user else ()
        return (*port, *user, "--", self.host)


def parse_address(text: str) -> BoardAddress:
    """Read an address.

    Args:
        text: See above.

    Raises:
        BuildError: The text is not such an address.
    """
    match = _ADDRESS.fullmatch(text)
    port = int(match["port"] or 0) if match else 0
    if match is None or port > _MOST_PORT:
        raise BuildError(
            f"{text!a} does not name a board",
            found_in="--prove",
            remedy="ssh://USER@HOST[:PORT], with a key instead of a password; the path of the "
            "interpreter may follow: ssh://pi@board/opt/edgepack/bin/python",
        )
    return BoardAddress(
        user=match["user"] or "",
        host=(match["six"] or match["host"]),
        port=port or None,
        python=match["python"] or PYTHON,
    )

"""Explanations of ssh's own words, where waiting for the board would not help."""

from edgepack.packager.boards.address import BoardAddress
from edgepack.packager.runtime.board import BoardError

_FAILED = 255
"""Exit code of ssh for a connection that failed; others are those of the command there."""


def explain_ssh(
    address: BoardAddress, code: int | None, words: str, is_greeted: bool
) -> BoardError | None:
    """Return the error of an ssh that ended, if a later try would end the same way.

    Args:
        address: The board.
        code: Exit code of ssh; None if unknown.
        words: What ssh wrote to stderr.
        is_greeted: Whether the keeper ran before.
    """
    last = words.splitlines()[-1][:300] if words else f"exit code {code}"
    port = f" -p {address.port}" if address.port else ""
    login = (
        f"ssh{port} {address.user}@{address.host}" if address.user else f"ssh{port} {address.host}"
    )
    where = f"ssh://{address.name}"
    if "HOST IDENTIFICATION HAS CHANGED" in words:
        return BoardError(
            f"board {address.name} shows another host key than the known key",
            found_in=where,
            remedy=f"if the board was set up anew: ssh-keygen -R {address.host}, then `{login}`; "
            "if not, something else answers in its place",
        )
    if "Host key verification failed" in words:
        return BoardError(
            f"the host key of board {address.name} is not known",
            found_in=where,
            remedy=f"`{login}` once, and compare the fingerprint that it shows; or compare that of "
            f"`ssh-keyscan{port} {address.host}`, and add the key to ~/.ssh/known_hosts",
        )
    if code == _FAILED and "Permission denied" in words:
        return BoardError(
            f"board {address.name} does not let the build log in: {last}",
            found_in=where,
            remedy=f"ssh-copy-id{port} {login.rpartition(' ')[2]}; a key with a passphrase must be "
            "in ssh-agent, since a build asks for nothing",
        )
    if code in (_FAILED, None) or is_greeted:
        return None
    return BoardError(
        f"{address.python} does not run on board {address.name}: {last}",
        found_in=where,
        remedy="install Python 3.11 or newer there, or name its path: "
        f"ssh://{address.user + '@' if address.user else ''}{address.name}/PATH/OF/PYTHON",
    )

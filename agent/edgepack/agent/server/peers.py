"""Users of clients on loopback, by the kernel's tables of TCP connections."""

import contextlib
from pathlib import Path

_TABLES = (("/proc/net/tcp", 8), ("/proc/net/tcp6", 32))
"""Tables, and the digits of their addresses."""


def find_peer_uid(address: tuple[str, int], own: tuple[str, int]) -> int | None:
    """Return the user of the other end of a loopback connection; None if not found.

    Args:
        address: Address and port of the client.
        own: Address and port of the server.
    """
    ends = f":{address[1]:04X}", f":{own[1]:04X}"
    for path, digits in _TABLES:
        with contextlib.suppress(OSError, ValueError, IndexError):
            for line in Path(path).read_text().splitlines()[1:]:
                words = line.split()
                if all(
                    word.endswith(end) and len(word) == digits + len(end)
                    for word, end in zip(words[1:3], ends, strict=True)
                ):
                    return int(words[7])
    return None

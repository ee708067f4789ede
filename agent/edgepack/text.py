"""Text for people: nothing in the text steers a terminal, and counts and order are natural."""

import re
from collections.abc import Iterable

_NUMBER = re.compile(r"(\d+)")


def printable(text: str) -> str:
    r"""Return the text with every character that is none to look at written out, as `\x1b`.

    So text from a device, a bundle or the network cannot colour, move or clear a terminal, nor
    insert lines. Used for printed or logged text; stored text stays unchanged.
    """
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )


def printable_lines(lines: Iterable[str]) -> str:
    """Join lines with text of another party: each stays a single line, and steers nothing."""
    return "\n".join(map(printable, lines))


def counted(number: int, noun: str, nouns: str = "") -> str:
    """Return a number with its noun: `1 device`, `2 devices`.

    Args:
        number: How many.
        noun: Singular.
        nouns: Plural; by default the noun with an s.
    """
    return f"{number} {noun if number == 1 else nouns or f'{noun}s'}"


def natural_order(name: str) -> tuple[tuple[bool, int, str], ...]:
    """Return a key to sort names by, as people do: `cam-2` before `cam-10`."""
    parts = (part for part in _NUMBER.split(name) if part)
    return tuple((part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in parts)

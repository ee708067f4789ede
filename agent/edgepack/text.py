"""Text that people read: nothing in it steers a terminal, and it counts and sorts as they do."""

import re
from collections.abc import Iterable

_NUMBER = re.compile(r"(\d+)")


def printable(text: str) -> str:
    r"""Return the text with every character that is none to look at written out, as `\x1b`.

    So what came from a device, a bundle or the network cannot colour, move or clear what a person
    sees, nor put a line of its own between ours. Used where text is printed or logged; what is
    stored stays unchanged.
    """
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )


def printable_lines(lines: Iterable[str]) -> str:
    """Join lines whose text may be another party's: each stays one line, and steers nothing."""
    return "\n".join(map(printable, lines))


def counted(number: int, noun: str, nouns: str = "") -> str:
    """Return a number with its noun: `1 device`, `2 devices`.

    Args:
        number: How many.
        noun: For one of them.
        nouns: For more; the same with an s where it is left out.
    """
    return f"{number} {noun if number == 1 else nouns or f'{noun}s'}"


def natural_order(name: str) -> tuple[tuple[bool, int, str], ...]:
    """Return a key to sort names by, as people do: `cam-2` before `cam-10`."""
    parts = (part for part in _NUMBER.split(name) if part)
    return tuple((part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in parts)

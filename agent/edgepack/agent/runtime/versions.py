"""Version ranges of a bundle: `>=1.23,<2` over dotted numbers.

Drivers, firmware and runtimes number themselves in many ways (`6.1.0-13-amd64`,
`1.31.1+cpu`), so only the leading dotted number counts, and missing parts are zero.
"""

import operator
import re
from collections.abc import Callable

_COMPARISONS: dict[str, Callable[[tuple[int, ...], tuple[int, ...]], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}
_BOUND = re.compile(r"(>=|<=|==|!=|>|<)\s*v?(\d+(?:\.\d+)*)")
_NUMBER = re.compile(r"v?(\d+(?:\.\d+)*)")

Bound = tuple[str, tuple[int, ...]]
"""A comparison and the version it compares with."""


def parse_version(text: str) -> tuple[int, ...]:
    """Return the leading dotted number of a version, without trailing zeros.

    Raises:
        ValueError: The text does not start with a number.
    """
    match = _NUMBER.match(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a version: it does not start with a number")
    parts = [int(part) for part in match[1].split(".")]
    while len(parts) > 1 and parts[-1] == 0:
        parts.pop()
    return tuple(parts)


def parse_range(text: str) -> tuple[Bound, ...]:
    """Return the bounds of a range; none for the empty text, which every version fits.

    Raises:
        ValueError: A part is not a comparison with a dotted number.
    """
    bounds = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = _BOUND.fullmatch(part)
        if match is None:
            raise ValueError(f"{text!r} is not a version range: {part!r} is not like '>=1.23'")
        bounds.append((match[1], parse_version(match[2])))
    return tuple(bounds)


def is_within(version: str, text: str) -> bool:
    """Return True if a version fits every bound of a range.

    Raises:
        ValueError: The version or the range cannot be read.
    """
    bounds = parse_range(text)
    if not bounds:
        return True
    number = parse_version(version)
    return all(_COMPARISONS[comparison](number, bound) for comparison, bound in bounds)

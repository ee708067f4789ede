"""Selectors of devices: `soc=QCS6490 and site=berlin`, over labels and reported facts.

    expression = conjunction { "or" conjunction }
    conjunction = term { "and" term }
    term = "not" term | "(" expression ")" | key ( "=" | "!=" ) value

A value with blanks or signs stands in quotes. A fact may have several values (`provider`): `=` is
true if any value is equal, `!=` if no value is equal.
"""

import re
from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from edgepack.decoding import decode_json
from edgepack.errors import FleetError
from edgepack.fleet.database.reports import facts_of
from edgepack.wire.reports import DeviceFacts

Attributes = Mapping[str, frozenset[str]]

MAX_LENGTH = 1000
MAX_DEPTH = 20
EXAMPLE = "--where 'soc=QCS6490 and site=berlin'"
WORDS = frozenset({"and", "or", "not"})
KEY = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,62}")


class Described(Protocol):
    """Attributes of a device for expressions; see `DeviceRow`."""

    @property
    def id(self) -> str:
        """Id of the device."""

    @property
    def group(self) -> str:
        """Group of the device."""

    @property
    def online(self) -> bool:
        """True if the device is online."""

    @property
    def labels(self) -> str:
        """Labels of the device, encoded."""

    @property
    def reported(self) -> str | None:
        """Last report of the device, encoded."""


FACTS: dict[str, Callable[[DeviceFacts], tuple[str, ...]]] = {
    "agent": lambda facts: (facts.agent_version,),
    "arch": lambda facts: (facts.arch,),
    "cpu": lambda facts: (facts.cpu_model,),
    "cpu_feature": lambda facts: facts.cpu_features,
    "firmware": lambda facts: (facts.firmware,),
    "hardware_class": lambda facts: (facts.hardware_class,),
    "os": lambda facts: (facts.os,),
    "provider": lambda facts: tuple(it.name for it in facts.providers if it.available),
    "python": lambda facts: (facts.python,),
    "runtime": lambda facts: (facts.runtime,),
    "soc": lambda facts: (facts.soc,),
}
ROW: dict[str, Callable[[Described], str]] = {
    "device": lambda row: row.id,
    "group": lambda row: row.group,
    "online": lambda row: "yes" if row.online else "no",
}
RESERVED = FACTS.keys() | ROW.keys() | WORDS

_TOKEN = re.compile(r"""(!=|[()=])|'([^']*)'|"([^"]*)"|([^\s()='"!]+)""")


class Where(msgspec.Struct, frozen=True, kw_only=True):
    """An expression that was read.

    Attributes:
        keys: The labels and facts in the expression.
        matches: Whether a device with these attributes is meant.
    """

    keys: frozenset[str]
    matches: Callable[[Attributes], bool]


def attributes(row: Described) -> Attributes:
    """Return the labels and reported facts of a device."""
    found = {key: frozenset({value}) for key, value in labels(row).items()}
    found |= {key: frozenset({read(row)}) for key, read in ROW.items()}
    facts = facts_of(row.reported)
    if facts is not None:
        found |= {key: frozenset(read(facts)) for key, read in FACTS.items()}
    return found


def labels(row: Described) -> dict[str, str]:
    """Return the labels of a device, by key."""
    return decode_json(row.labels, dict[str, str])


def parse_where(text: str) -> Where:
    """Read an expression.

    Raises:
        FleetError: The text is not an expression: the message states the position of the error.
    """
    if len(text) > MAX_LENGTH:
        raise FleetError(
            f"an expression has at most {MAX_LENGTH} characters, this one has {len(text)}",
            found_in=f"--where {text[:40]}…",
            remedy=EXAMPLE,
        )
    return _Parser(text).parse()


class _Parser:
    """Parser of a text, from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self._keys: set[str] = set()

    def parse(self) -> Where:
        matches = self._any()
        if self._peek():
            raise self._wrong("'and' or 'or'")
        return Where(keys=frozenset(self._keys), matches=matches)

    def _any(self) -> Callable[[Attributes], bool]:
        tests = [self._all()]
        while self._take_word("or"):
            tests.append(self._all())
        return lambda found: any(test(found) for test in tests)

    def _all(self) -> Callable[[Attributes], bool]:
        tests = [self._term()]
        while self._take_word("and"):
            tests.append(self._term())
        return lambda found: all(test(found) for test in tests)

    def _term(self) -> Callable[[Attributes], bool]:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._wrong(f"at most {MAX_DEPTH} levels")
        try:
            if self._take_word("not"):
                inner = self._term()
                return lambda found: not inner(found)
            if self._take_word("("):
                inner = self._any()
                if not self._take_word(")"):
                    raise self._wrong("')'")
                return inner
            return self._comparison()
        finally:
            self._depth -= 1

    def _comparison(self) -> Callable[[Attributes], bool]:
        key, _ = self._peek() or ("", False)
        if not KEY.fullmatch(key) or key in WORDS:
            raise self._wrong("a label or a fact")
        self._take()
        sign = next((sign for sign in ("=", "!=") if self._take_word(sign)), None)
        if sign is None:
            raise self._wrong("'=' or '!='")
        value, is_sign = self._peek() or ("", True)
        if is_sign:
            raise self._wrong("a value")
        self._take()
        self._keys.add(key)
        return lambda found: (value in found.get(key, frozenset())) == (sign == "=")

    def _peek(self) -> tuple[str, bool] | None:
        """Return the next token, and whether the token is a grammar sign; None at the end."""
        found = self._match()
        if found is None:
            return None
        sign, single, double, word = found.groups()
        return next(text for text in (sign, single, double, word) if text is not None), bool(sign)

    def _match(self) -> re.Match[str] | None:
        while self._at < len(self._text) and self._text[self._at].isspace():
            self._at += 1
        if self._at == len(self._text):
            return None
        found = _TOKEN.match(self._text, self._at)
        if found is None:
            raise self._wrong("a closed quote")
        return found

    def _take(self) -> None:
        found = self._match()
        if found is not None:
            self._at = found.end()

    def _take_word(self, word: str) -> bool:
        found = self._match()
        is_there = found is not None and found[0] == word
        if is_there:
            self._take()
        return is_there

    def _wrong(self, wanted: str) -> FleetError:
        rest = self._text[self._at : self._at + 40].strip()
        place = f"at {rest!r}" if rest else "at its end"
        return FleetError(
            f"the expression makes no sense {place}: {wanted} is expected there",
            found_in=f"--where {self._text[:80]}",
            remedy=EXAMPLE,
        )

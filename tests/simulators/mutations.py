"""Changes of valid bytes that an attacker might make; the same for the same seed."""

import copy
import json
import random
from collections.abc import Iterator, Sequence
from typing import Any

ESCAPES = "\x1b[2J\x1b]0;owned\x07\r\nerror: \u202egniht"
_NUMBERS = (0, -1, 2**31, 2**53, 2**63, 2**64, -(2**63), 10**400, 1e308, 0.5)
_TEXTS = ("", ESCAPES, "\x00", "\ud800", "../../etc/passwd", "x" * 70_000, "9" * 5000, "NaN")
_VALUES: tuple[Any, ...] = (*_NUMBERS, *_TEXTS, None, True, [], {}, [[]] * 1000)
_DEEP = 100_000


def mutated(content: bytes, others: Sequence[bytes], seed: int, count: int) -> Iterator[bytes]:
    """Yield changed bytes in sequence.

    Args:
        content: Valid bytes.
        others: Valid bytes of the same kind, as a source of pieces.
        seed: Decides everything.
        count: How many.
    """
    rng = random.Random(seed)
    document = _document(content)
    yield from _specials(content)
    for _ in range(count):
        if document is not None and rng.random() < 0.6:
            changed = json.loads(content)
            for _ in range(rng.choice([1, 1, 2, 4])):
                changed = _change(rng, changed)
            yield _encode(changed)
        else:
            yield _cut_up(rng, content, rng.choice([*others, content]))


def _specials(content: bytes) -> Iterator[bytes]:
    yield b""
    yield b"\xff\xfe" + content
    yield b"[" * _DEEP
    yield b'{"a":' * _DEEP
    yield b"9" * _DEEP
    yield content * 3
    yield content + b"\x00" * _DEEP
    yield b'"' + ESCAPES.encode() + b'"'


def _document(content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        return None


def _encode(document: Any) -> bytes:
    """Encode as JSON; keep text that is not Unicode as an escape."""
    return json.dumps(document).encode()


def _change(rng: random.Random, document: Any) -> Any:
    """Change, remove or rename a value somewhere in a document."""
    places = list(_places(document))
    if not places:
        return rng.choice(_VALUES)
    holder, key = rng.choice(places)
    match rng.randrange(5):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, dict):
            holder[rng.choice([ESCAPES, "__proto__", "x" * 300, "v", key.upper()])] = holder[key]
        case 2:
            there, name = rng.choice(places)
            holder[key] = copy.deepcopy(there[name])
        case _:
            holder[key] = copy.deepcopy(rng.choice(_VALUES))
    return document


def _places(document: Any) -> Iterator[tuple[Any, Any]]:
    waiting = [document]
    while waiting:
        holder = waiting.pop()
        keys: Sequence[Any] = (
            list(holder)
            if isinstance(holder, dict)
            else range(len(holder))
            if isinstance(holder, list)
            else ()
        )
        for key in keys[:50]:
            yield holder, key
            waiting.append(holder[key])


def _cut_up(rng: random.Random, content: bytes, other: bytes) -> bytes:
    changed = bytearray(content)
    for _ in range(rng.choice([1, 1, 2, 5])):
        at = rng.randrange(len(changed) + 1)
        length = rng.choice([1, 2, 8, 600])
        match rng.randrange(6):
            case 0:
                del changed[at:]
            case 1:
                del changed[at : at + length]
            case 2:
                changed[at:at] = rng.randbytes(length)
            case 3:
                changed[at : at + length] = rng.randbytes(length)
            case 4:
                start = rng.randrange(len(other) + 1)
                changed[at : at + length] = other[start : start + length]
            case _ if at < len(changed):
                changed[at] ^= 1 << rng.randrange(8)
    return bytes(changed)

"""Decoding with msgspec that several threads may begin at the same time.

msgspec 0.22 lets other threads see the description of a struct class before the description is
complete. Two threads that decode a class for the first time then end the process with a
segmentation fault. Here a lock covers the first use of each type; later uses take no lock.
"""

import threading
from typing import Any, TypeVar, overload

import msgspec

T = TypeVar("T")

_lock = threading.Lock()
_prepared: set[Any] = set()


@overload
def decode_json(content: bytes | str, kind: type[T], *, strict: bool = True) -> T: ...
@overload
def decode_json(content: bytes | str, kind: Any = Any, *, strict: bool = True) -> Any: ...
def decode_json(content: bytes | str, kind: Any = Any, *, strict: bool = True) -> Any:
    """Return the value of a JSON text.

    Args:
        content: The text, UTF-8.
        kind: Type of the value.
        strict: Whether a string that reads as a number is no number.

    Raises:
        msgspec.DecodeError: The text is not JSON, or its value does not fit the type.
        UnicodeDecodeError: The text is not UTF-8.
        RecursionError: The value is nested too deeply.
    """
    _prepare(kind)
    return msgspec.json.decode(content, type=kind, strict=strict)


@overload
def decode_toml(content: bytes | str, kind: type[T]) -> T: ...
@overload
def decode_toml(content: bytes | str, kind: Any = Any) -> Any: ...
def decode_toml(content: bytes | str, kind: Any = Any) -> Any:
    """Return the value of a TOML text; raise as `decode_json` does."""
    _prepare(kind)
    return msgspec.toml.decode(content, type=kind)


@overload
def convert_value(
    value: Any, kind: type[T], *, strict: bool = True, str_keys: bool = False
) -> T: ...
@overload
def convert_value(value: Any, kind: Any, *, strict: bool = True, str_keys: bool = False) -> Any: ...
def convert_value(value: Any, kind: Any, *, strict: bool = True, str_keys: bool = False) -> Any:
    """Return decoded JSON or TOML as a value of a type.

    Args:
        value: The decoded value.
        kind: Type of the result.
        strict: Whether a string that reads as a number is no number.
        str_keys: Whether keys that are strings fit a type with other keys.

    Raises:
        msgspec.ValidationError: The value does not fit the type.
        RecursionError: The value is nested too deeply.
    """
    _prepare(kind)
    return msgspec.convert(value, kind, strict=strict, str_keys=str_keys)


def json_decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    """Return a decoder of JSON texts for one type."""
    with _lock:
        return msgspec.json.Decoder(kind)


def _prepare(kind: Any) -> None:
    if kind in _prepared:
        return
    with _lock:
        msgspec.json.Decoder(kind)
        _prepared.add(kind)

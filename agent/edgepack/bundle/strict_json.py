"""Reading JSON that strangers wrote: bounded, without duplicate keys, and into a typed value."""

import json
import math
from typing import Any, TypeVar

import msgspec
import msgspec.inspect

from edgepack.decoding import convert_value
from edgepack.errors import BundleError, parse_problem

T = TypeVar("T")


def parse_json(content: bytes, *, limit_bytes: int, found_in: str) -> Any:
    """Parse JSON and reject content that two parsers could read in two ways.

    Args:
        content: UTF-8 text.
        limit_bytes: Longer content is rejected before parsing.
        found_in: Name of the file, for messages.

    Raises:
        BundleError: Too long, no UTF-8, no JSON, nested too deeply, a duplicate key in an object, a
            number that is not finite, or text that is not Unicode (half of a surrogate pair).
    """
    if len(content) > limit_bytes:
        raise BundleError(
            f"{found_in} has {len(content)} bytes, at most {limit_bytes} are read",
            found_in=found_in,
        )
    try:
        document = json.loads(
            content.decode("utf-8"),
            object_pairs_hook=_refuse_duplicate_keys,
            parse_constant=_finite_float,
            parse_float=_finite_float,
        )
        if b"\\u" in content:
            json.dumps(document, ensure_ascii=False).encode()  # Only an escape writes such a half.
        return document
    except (ValueError, RecursionError) as error:
        raise BundleError(
            f"{found_in} is not valid JSON: {parse_problem(error)}", found_in=found_in
        ) from error


def convert_json(value: Any, kind: type[T], *, found_in: str) -> T:
    """Turn parsed JSON into a struct.

    Args:
        value: Result of `parse_json`, or a part of the result.
        kind: The struct.
        found_in: File and key of `value`, for messages.

    Raises:
        BundleError: A key is missing, unknown, or its value does not fit.
    """
    try:
        return convert_value(value, kind)
    except msgspec.ValidationError as error:
        problem, _, place = str(error).partition(" - at ")
        key = place.strip("`").removeprefix("$").removeprefix(".")
        separator = "." if "," in found_in else ", "
        raise BundleError(
            f"{found_in.partition(',')[0]} does not fit the format: {problem}",
            found_in=f"{found_in}{separator}{key}" if key else found_in,
        ) from error


def without_unknown(value: Any, kind: type) -> Any:
    """Return parsed JSON without the keys that a struct, or a nested struct, does not name."""
    return _without_unknown(value, msgspec.inspect.type_info(kind))


def _without_unknown(value: Any, kind: msgspec.inspect.Type) -> Any:
    if isinstance(kind, msgspec.inspect.UnionType):
        structs = [one for one in kind.types if isinstance(one, msgspec.inspect.StructType)]
        return _without_unknown(value, structs[0]) if structs else value
    if isinstance(kind, msgspec.inspect.StructType) and isinstance(value, dict):
        known = {field.encode_name: field.type for field in kind.fields}
        return {key: _without_unknown(value[key], known[key]) for key in value if key in known}
    if isinstance(kind, msgspec.inspect.DictType) and isinstance(value, dict):
        return {key: _without_unknown(value[key], kind.value_type) for key in value}
    if isinstance(kind, msgspec.inspect.VarTupleType) and isinstance(value, list):
        return [_without_unknown(entry, kind.item_type) for entry in value]
    return value


def _refuse_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!a} stands twice in one object")
        found[key] = value
    return found


def _finite_float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {text} is not finite")
    return number

"""Says in a profile's own words what msgspec finds wrong with its types.

msgspec tells `Invalid enum value 'rmse' - at `$.gates.accuracy.metric`` and counts the passes of
the whole family. A person has one file before them, and wants to know what may stand there.
"""

import re
import typing
from collections.abc import Mapping
from typing import Any

import msgspec

from edgepack.errors import ProfileError
from edgepack.packager.profile.schema import Profile

_AT = re.compile(r"^(?P<what>.*?)(?: - at `(?:key in )?\$\.?(?P<path>.*)`)?$", re.DOTALL)
_EXPECTED = re.compile(r"^Expected `(?P<wanted>[^`]+)`, got `(?P<got>[^`]+)`$")
_MISSING = re.compile(r"^Object missing required field `(?P<field>[^`]+)`$")
_STEP = re.compile(r"([^.\[\]]+)|\[(\d+|\.\.\.)\]")

_WORDS = {
    "array": "a list",
    "object": "a section",
    "str": "a text",
    "float": "a number",
    "int": "a whole number",
    "bool": "true or false",
}
_REMEDIES = {
    "array": "put it in brackets: [...]",
    "object": "write a section of that name, with keys of its own",
    "str": 'put it in quotes: "..."',
    "float": "write the number without quotes",
    "int": "write the whole number without quotes",
    "bool": "true or false, without quotes",
}


def type_error(
    error: msgspec.ValidationError, settings: Mapping[str, Any], source: str
) -> ProfileError:
    """The error for a person.

    Args:
        error: What msgspec raised.
        settings: What it was given: a profile and its ancestors, merged.
        source: The profile's file.
    """
    match = _AT.match(str(error))
    what, path = (match["what"], match["path"] or "") if match else (str(error), "")
    place, value, kind = _look_up(path, settings)
    found_in = f"{source}, {place}" if place else source
    if missing := _MISSING.match(what):
        return ProfileError(
            f"{place or 'a profile'} lacks '{missing['field']}'",
            found_in=found_in,
            remedy='name it, or start from a shipped profile that has it: extends = "cpu"',
        )
    if allowed := _literals(kind):
        return ProfileError(
            f"{place} is {value!r}; allowed are: {', '.join(allowed)}", found_in=found_in
        )
    if expected := _EXPECTED.match(what):
        wanted = expected["wanted"].split(" ")[0]
        return ProfileError(
            f"{place} must be {_WORDS.get(wanted, wanted)}, and is {value!r}",
            found_in=found_in,
            remedy=_REMEDIES.get(wanted),
        )
    return ProfileError(f"a profile is wrong: {what}", found_in=found_in)


def _look_up(path: str, settings: object) -> tuple[str, object, object]:
    """A place in a file's words, what stands there, and what may stand there."""
    place, value, kind = "", settings, typing.cast(object, Profile)
    for name, index in _STEP.findall(path):
        if name:
            place = f"{place}.{name}" if place else name
            kind = _field(kind, value, name)
            value = value.get(name) if isinstance(value, dict) else None
        elif index.isdigit() and isinstance(value, list) and int(index) < len(value):
            value, kind = value[int(index)], _item(kind)
            is_pass = isinstance(value, dict) and "name" in value
            place += f"[{value['name'] if is_pass and isinstance(value, dict) else index}]"
        else:
            kind, place = None, f"{place}[…]"
    return place, value, kind


def _field(kind: object, value: object, name: str) -> object:
    """The type of a field; of one of several structs the one that the value's name tells."""
    for option in (kind, *typing.get_args(kind)):
        if not (isinstance(option, type) and issubclass(option, msgspec.Struct)):
            continue
        tag = option.__struct_config__.tag
        if tag is not None and isinstance(value, dict) and value.get("name") != tag:
            continue
        for field in msgspec.structs.fields(option):
            if field.encode_name == name:
                return field.type
    return None


def _item(kind: object) -> object:
    items = typing.get_args(kind)
    return items[0] if items else None


def _literals(kind: object) -> list[str]:
    """The values of a Literal, also where it is one of several types."""
    if typing.get_origin(kind) is typing.Literal:
        return [str(value) for value in typing.get_args(kind)]
    return []

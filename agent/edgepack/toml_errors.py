"""Type errors of msgspec, in the terms of the file.

msgspec reports ``Invalid enum value 'fast' - at `$.gates.prefer` `` and counts the passes of a
profile's whole family. A person has a single file (a profile, an `edgepack.toml`, an agent's
settings), and needs the allowed values.
"""

import re
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from edgepack.decoding import convert_value

_AT = re.compile(r"^(?P<what>.*?)(?: - at `(?:key in )?\$\.?(?P<path>.*)`)?$", re.DOTALL)
_EXPECTED = re.compile(r"^Expected `(?P<wanted>[^`]+)`, got `(?P<got>[^`]+)`$")
_MISSING = re.compile(r"^Object missing required field `(?P<field>[^`]+)`$")
_TAG = re.compile(r"^Invalid value '.*'$")
_BOUND = re.compile(r"^Expected `\w+` (?P<bound>(?:of length )?[<>]=? \S+)$")
_UNKNOWN = re.compile(r"^Object contains unknown field `(?P<field>[^`]+)`$")
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


class TypeProblem(msgspec.Struct, frozen=True, kw_only=True):
    """Problem of a value.

    Attributes:
        place: Key of the value: `gates.prefer`, `pass[quantize].ranges`; "" for the whole file.
        problem: Problem, as a sentence.
        remedy: Text to write, or None if the problem contains the remedy.
    """

    place: str
    problem: str
    remedy: str | None = None


def describe_type_error(
    error: msgspec.ValidationError,
    settings: Mapping[str, Any],
    root: type[msgspec.Struct],
    elsewhere: tuple[type[msgspec.Struct], str] | None = None,
) -> TypeProblem:
    """Return the problem in words for a person.

    Args:
        error: Error raised by msgspec.
        settings: Input of msgspec.
        root: Expected type.
        elsewhere: Type of another file, and the remedy for a section of that file.
    """
    match = _AT.match(str(error))
    what, path = (match["what"], match["path"] or "") if match else (str(error), "")
    place, value, kind = _look_up(path, settings, root)
    if unknown := _UNKNOWN.match(what):
        field = unknown["field"]
        problem = _unknown(field, place, value, kind)
        if elsewhere is not None and not place and field in _names(elsewhere[0], None):
            return msgspec.structs.replace(problem, remedy=elsewhere[1])
        return problem
    if missing := _MISSING.match(what):
        return TypeProblem(
            place=place,
            problem=f"{place or 'the file'} lacks '{missing['field']}'",
            remedy=_where_to_take(missing["field"], kind, root),
        )
    allowed = _literals(kind)
    if _TAG.match(what):
        _, _, union = _look_up(path.rpartition(".")[0], settings, root)
        allowed = _tags(union)
    if allowed:
        near = _find_near(str(value), allowed)
        return TypeProblem(
            place=place,
            problem=f"{place} is {value!r}; allowed are: {', '.join(allowed)}",
            remedy=near or None,
        )
    if beyond := _BOUND.match(what):
        is_short = isinstance(value, int | float) or value in ("", [])  # others may be secrets
        shown = f", and is {value!r}" if is_short else ""
        return TypeProblem(place=place, problem=f"{place} must be {beyond['bound']}{shown}")
    if expected := _EXPECTED.match(what):
        wanted = dict.fromkeys(expected["wanted"].split(" | "))
        wanted.pop("null", None)  # which TOML does not have
        if "float" in wanted:
            wanted.pop("int", None)  # a whole number is one too
        words = " or ".join(_WORDS.get(kind, kind) for kind in wanted)
        return TypeProblem(
            place=place,
            problem=f"{place} must be {words}, and is {value!r}",
            remedy=_REMEDIES.get(next(iter(wanted))) if len(wanted) == 1 else None,
        )
    return TypeProblem(place=place, problem=what if not place else f"{place}: {what}")


def _find_near(word: str, allowed: Sequence[str]) -> str:
    """Return the allowed word that is nearest; "" if none is near."""
    import difflib  # For errors alone.

    return next(iter(difflib.get_close_matches(word, allowed, n=1)), "")


def _where_to_take(field: str, kind: object, root: type[msgspec.Struct]) -> str:
    """Return the remedy for a missing key."""
    if tags := _tags(kind):
        return f"{field} = one of: {', '.join(tags)}"
    if _structs(_field(kind, None, field), None):
        return f"add a section [{field}]"
    inherited = ', or inherit it: extends = "cpu"' if "profile" in _names(root, None) else ""
    return f"{field} = …{inherited}"


def _unknown(field: str, place: str, value: object, kind: object) -> TypeProblem:
    allowed = sorted(_names(kind, value))
    near = _find_near(field, allowed)
    return TypeProblem(
        place=f"{place}.{field}" if place else field,
        problem=f"unknown key '{field}'; allowed here: {', '.join(allowed)}",
        remedy=near or "remove it",
    )


def _look_up(path: str, settings: object, root: type[msgspec.Struct]) -> tuple[str, object, object]:
    """Return a place in a file's terms, the present value, and the allowed values."""
    place, value, kind = "", settings, typing.cast("object", root)
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
            name = _first_wrong(value, _item(kind, last=True))
            value, kind = value[name] if isinstance(value, dict) else None, _item(kind, last=True)
            place = f"{place}.{name}"
    return place, value, kind


def _first_wrong(values: object, kind: object) -> str:
    """Return the key of a table whose value does not fit: msgspec does not name the key."""
    for key, value in values.items() if isinstance(values, dict) else ():
        try:
            convert_value(value, kind)
        except msgspec.ValidationError:
            return str(key)
    return "…"


def _structs(kind: object, value: object) -> list[type[msgspec.Struct]]:
    """Return the possible structs of a value; of several the struct of its tag."""
    found = []
    for option in (kind, *typing.get_args(kind)):
        if not (isinstance(option, type) and issubclass(option, msgspec.Struct)):
            continue
        config = option.__struct_config__
        tag = value.get(config.tag_field) if isinstance(value, dict) and config.tag else config.tag
        if tag == config.tag:
            found.append(option)
    return found


def _tags(union: object) -> list[str]:
    """Return the tags that tell the structs of a union apart, sorted."""
    options = typing.get_args(union)
    structs = [it for it in options if isinstance(it, type) and issubclass(it, msgspec.Struct)]
    return sorted(str(it.__struct_config__.tag) for it in structs)


def _names(kind: object, value: object) -> list[str]:
    return [
        field.encode_name
        for option in _structs(kind, value)
        for field in msgspec.structs.fields(option)
    ]


def _field(kind: object, value: object, name: str) -> object:
    """Return the type of a field."""
    for option in _structs(kind, value):
        for field in msgspec.structs.fields(option):
            if field.encode_name == name:
                return field.type
    return None


def _item(kind: object, *, last: bool = False) -> object:
    """Return the type of a list's entries, or of a table's values: the last of its two types."""
    items = typing.get_args(kind)
    return items[-1 if last else 0] if items else None


def _literals(kind: object) -> list[str]:
    """Return the values of a Literal, also within a union."""
    if typing.get_origin(kind) is typing.Annotated:
        return _literals(typing.get_args(kind)[0])
    if typing.get_origin(kind) is typing.Literal:
        return [str(value) for value in typing.get_args(kind)]
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return [value for each in typing.get_args(kind) for value in _literals(each)]
    return []

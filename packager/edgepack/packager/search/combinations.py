"""Settings that are searched: a profile tried with each combination of several values.

1. Parse `KEY=a,b,c`, or take keys and lists from `edgepack.toml`.
2. Reject keys that no profile has, or that state requirements instead of methods.
3. Merge each combination into the profile and check the result like any profile, before work
  begins.
"""

import difflib
import itertools
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import msgspec
from msgspec.structs import replace

from edgepack.errors import BuildError, ProfileError
from edgepack.packager.profiles.reading import resolve_profile
from edgepack.packager.profiles.schema import Profile
from edgepack.packager.profiles.section import Share

MOST_COMBINATIONS = 64
"""Each costs a calibration and several candidates."""

NOTHING: Mapping[str, Any] = {}

_FREE_KEYS = ("provider.options", "provider.session")


class SearchedKey(msgspec.Struct, frozen=True, kw_only=True):
    """Setting with the values to try.

    Attributes:
        key: E.g. `quantize.activations`: a pass and its setting; or `provider.options.NAME`.
        values: The values, in the order to try; of two that do equally well the first is taken.
        found_in: Place of the request.
        file: Absolute path of the file that asks; "" on the command line.
    """

    key: str
    values: tuple[Any, ...]
    found_in: str
    file: str = ""


class Combination(msgspec.Struct, frozen=True, kw_only=True):
    """A profile with a value for each searched key.

    Attributes:
        words: The values, e.g. `quantize.activations = uint8`; "" where nothing is searched.
        profile: The profile with these values.
    """

    words: str
    profile: Profile


def parse_searched(text: str) -> SearchedKey:
    """Read `KEY=a,b,c`; values are TOML values, and words need no quotes.

    Raises:
        BuildError: There is no key or no value.
    """
    key, equals, listed = text.partition("=")
    values = tuple(_parse_value(value) for value in listed.split(",") if value.strip())
    if listed.strip().startswith("["):
        values = tuple(_parse_value(f"[{listed}]"))  # lists hold commas themselves
    if not equals or not key.strip() or not values:
        raise BuildError(
            f"'{text}' names no setting with values to try",
            found_in="--search",
            remedy="--search quantize.activations=uint8,uint16",
        )
    return SearchedKey(key=key.strip(), values=values, found_in=f"--search {text}")


def read_searched(settings: Mapping[str, Any], found_in: str) -> Iterator[SearchedKey]:
    """Read the section `[search]` of an `edgepack.toml`.

    Args:
        settings: The section; `a.b = […]` and `"a.b" = […]` mean the same.
        found_in: The file, for messages.

    Raises:
        BuildError: A setting has an empty list.
    """
    for key, value in settings.items():
        if isinstance(value, dict):
            yield from read_searched(
                {f"{key}.{inner}": entry for inner, entry in value.items()}, found_in
            )
        else:
            values = tuple(value) if isinstance(value, list) else (value,)
            place = f"{found_in}, [search] {key}"
            if not values:
                raise BuildError(
                    f"'{key}' names no value to try",
                    found_in=place,
                    remedy="name one, or remove it",
                )
            file = str(Path(found_in).resolve()) if found_in else ""
            yield SearchedKey(key=key, values=values, found_in=place, file=file)


def combine(
    names: Sequence[str], searched: Iterable[SearchedKey], changes: Mapping[str, Any] = NOTHING
) -> tuple[tuple[Combination, ...], ...]:
    """Combine every value of each profile, and check the combinations.

    Args:
        names: Profiles, by name or path.
        searched: Keys to search; a key that only some of the profiles have is searched for these,
            and of a repeated key the last counts.
        changes: Further changes of each profile, see `resolve_profile`.

    Returns:
        For each profile its combinations, in the order to try.

    Raises:
        BuildError: An impossible key or value, with the allowed names, or too many combinations.
        ProfileError: The profile does not exist.
    """
    by_key = {entry.key: entry for entry in searched}
    profiles = [resolve_profile(name, changes) for name in names]
    for entry in by_key.values():
        _check_key(entry, profiles)
    return tuple(
        _combine_one(
            name, profile, [e for e in by_key.values() if _applies(e.key, profile)], changes
        )
        for name, profile in zip(names, profiles, strict=True)
    )


def _combine_one(
    name: str, profile: Profile, searched: Sequence[SearchedKey], others: Mapping[str, Any]
) -> tuple[Combination, ...]:
    if not searched:
        return (Combination(words="", profile=profile),)
    for entry in searched:
        for value in entry.values:
            _check_value(name, profile, entry, value)
    choices = list(itertools.product(*(entry.values for entry in searched)))
    if len(choices) > MOST_COMBINATIONS:
        raise BuildError(
            f"{len(choices)} combinations are more than a search can try ({MOST_COMBINATIONS})",
            found_in="; ".join(entry.found_in for entry in searched),
            remedy="give fewer values, or search one key after the other",
        )
    found: dict[str, Combination] = {}
    for values in choices:
        words = ", ".join(
            f"{entry.key} = {_describe(value)}"
            for entry, value in zip(searched, values, strict=True)
        )
        changes = dict(others)
        for entry, value in zip(searched, values, strict=True):
            _put(changes, profile, entry.key, value)
        try:
            changed = resolve_profile(name, changes)
        except ProfileError as error:
            raise BuildError(
                f"the combination {words} cannot be: {error.problem}",
                found_in=error.found_in,
                remedy=error.remedy,
            ) from error
        changed = _name_precision(profile, changed)
        found.setdefault(changed.sha256, Combination(words=words, profile=changed))
    return tuple(found.values())


def _check_key(entry: SearchedKey, profiles: Sequence[Profile]) -> None:
    if any(_applies(entry.key, profile) for profile in profiles):
        return
    allowed = sorted({key for profile in profiles for key in _keys(profile)})
    near = difflib.get_close_matches(entry.key, allowed, n=1)
    raise BuildError(
        f"'{entry.key}' cannot be searched; these can: {', '.join(allowed)}, and "
        f"{', '.join(f'{key}.NAME' for key in _FREE_KEYS)}",
        found_in=entry.found_in,
        remedy=f"{near[0]}" if near else "a setting of one of the recipe's passes",
    )


def _check_value(name: str, profile: Profile, entry: SearchedKey, value: Any) -> None:
    """Check a single value, so that a message can name the value."""
    changes: dict[str, Any] = {}
    _put(changes, profile, entry.key, value)
    try:
        resolve_profile(name, changes)
    except ProfileError as error:
        if "contradicts" in error.problem:
            return  # another key's value may settle it; the combinations are checked whole
        allowed = _allowed(profile, entry.key)
        why = "" if allowed else f": {error.problem}"
        raise BuildError(
            f"{entry.key} cannot be {_describe(value)}{why}",
            found_in=entry.found_in,
            remedy=f"allowed: {allowed}" if allowed else error.remedy,
        ) from error


def _applies(key: str, profile: Profile) -> bool:
    if any(key.startswith(f"{free}.") for free in _FREE_KEYS):
        return True
    return key in _keys(profile)


def _keys(profile: Profile) -> Iterator[str]:
    for entry in profile.passes:
        for field in msgspec.structs.fields(entry):
            yield f"{entry.__struct_config__.tag}.{field.encode_name}"


def _put(changes: dict[str, Any], profile: Profile, key: str, value: Any) -> None:
    for free in _FREE_KEYS:
        if key.startswith(f"{free}."):
            section, name = free.split(".")
            options = changes.setdefault(section, {}).setdefault(name, {})
            options[key.removeprefix(f"{free}.")] = value if isinstance(value, str) else str(value)
            return
    tag, _, setting = key.partition(".")
    if isinstance(_current(profile, key), tuple) and not isinstance(value, list):
        value = [value]
    passes = changes.setdefault("pass", [])
    for entry in passes:
        if entry["name"] == tag:
            entry[setting] = value
            return
    passes.append({"name": tag, setting: value})


def _current(profile: Profile, key: str) -> Any:
    tag, _, setting = key.partition(".")
    for entry in profile.passes:
        if entry.__struct_config__.tag == tag:
            return getattr(entry, setting)
    return None


def _allowed(profile: Profile, key: str) -> str:
    """Return the allowed values of a pass's setting in words; "" if its type has no list."""
    tag, _, setting = key.partition(".")
    for entry in profile.passes:
        if entry.__struct_config__.tag == tag:
            kinds = {field.encode_name: field.type for field in msgspec.structs.fields(entry)}
            return _describe_type(kinds[setting])
    return ""


def _describe_type(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return ", ".join(_describe(value) for value in get_args(kind))
    if get_origin(kind) is tuple:
        return _describe_type(get_args(kind)[0])
    names: dict[Any, str] = {Share: "a number from 0 to 1", float: "a number", str: "text"}
    names |= {bool: "true, false", int: "a whole number"}
    return names.get(kind, "")


def _name_precision(profile: Profile, changed: Profile) -> Profile:
    """Return the precision in words follows the types, where these are searched."""
    before, after = profile.quantize, changed.quantize
    if before is None or after is None or before.precision == after.precision:
        return changed
    about = replace(changed.about, precision=after.precision)
    return replace(changed, about=about)


def _parse_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text.strip()


def _describe(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_describe(entry) for entry in value)}]"
    return str(value)

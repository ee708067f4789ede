"""Reads profiles: hardware targets as data, TOML files by name or by path.

1. Read the file and, through `extends`, its ancestors; a cycle is an error.
2. Merge: a child's keys win; a `[[pass]]` of the same name changes that pass's settings, a new pass
   is added at the end.
3. Reject unknown keys by name, with the allowed keys, and values of a wrong type.
4. Refuse settings that contradict each other (`checks`).
"""

import difflib
import hashlib
import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import asdict, replace

from edgepack.decoding import convert_value
from edgepack.errors import ProfileError, parse_problem
from edgepack.packager.profiles.checks import check_consistency
from edgepack.packager.profiles.schema import Profile, ProfileSections
from edgepack.toml_errors import describe_type_error

_SHIPPED = "edgepack.profiles"
_PRECISION_OF_TYPES = re.compile(r"^a\d+w\d+$")


def list_profiles() -> tuple[str, ...]:
    """Return the names of the profiles that are shipped, sorted."""
    folder = resources.files(_SHIPPED)
    return tuple(
        sorted(
            entry.name.removesuffix(".toml")
            for entry in folder.iterdir()
            if entry.name.endswith(".toml")
        )
    )


def load_profile(name_or_path: str) -> Profile:
    """Read and check a profile.

    Args:
        name_or_path: Name of a shipped profile, or the path of a TOML file.

    Returns:
        The resolved profile.

    Raises:
        ProfileError: There is no such profile, or the profile has unknown or ill-typed keys,
            inherits from itself, or contradicts itself.
    """
    return resolve_profile(name_or_path, {})


def resolve_profile(name_or_path: str, changes: Mapping[str, Any]) -> Profile:
    """Read a profile and override settings, like a child's.

    Args:
        name_or_path: See `load_profile`.
        changes: Settings in the shape of a profile file, e.g. `{"gates": {"placement_min": 1.0}}`.

    Returns:
        The resolved profile.

    Raises:
        ProfileError: See `load_profile`.
    """
    source, merged = _read_family(name_or_path, ())
    settings = _merge(merged, dict(changes))
    settings.get("profile", {}).pop("extends", None)
    try:
        read = convert_value(settings, ProfileSections)
    except msgspec.ValidationError as error:
        found = describe_type_error(error, settings, ProfileSections)
        raise ProfileError(
            found.problem,
            found_in=f"{source}, {found.place}" if found.place else source,
            remedy=found.remedy,
        ) from error
    profile = _with_its_precision(Profile(**asdict(read), source=source))
    check_consistency(profile, source)
    return with_digest(profile)


def with_digest(profile: Profile) -> Profile:
    """Return the profile with the digest of its settings."""
    plain = replace(profile, sha256="", source="")
    digest = hashlib.sha256(msgspec.json.encode(plain, order="deterministic")).hexdigest()
    return replace(profile, sha256=digest)


def _with_its_precision(profile: Profile) -> Profile:
    """Name the precision after the types, where a child changes these and inherits its name."""
    about, lowering = profile.about, profile.quantize
    if lowering is None or not _PRECISION_OF_TYPES.match(about.precision):
        return profile
    about = replace(about, precision=lowering.precision)
    return replace(profile, about=about)


def _read_family(name_or_path: str, children: tuple[str, ...]) -> tuple[str, dict[str, Any]]:
    source, text = _read(name_or_path, children)
    if source in children:
        family = " -> ".join((*children, source))
        raise ProfileError(
            "a profile extends itself", found_in=family, remedy="remove one `extends`"
        )
    try:
        own = tomllib.loads(text.removeprefix("\ufeff"))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ProfileError(
            f"a profile is not valid TOML: {parse_problem(error)}",
            found_in=source,
            remedy="compare it with docs/how-to/profile.md, or edgepack profiles show",
        ) from error
    _refuse_repeated_passes(own.get("pass"), source)
    about = own.get("profile")
    if not isinstance(about, dict):
        raise ProfileError(
            "a profile has no section [profile]",
            found_in=source,
            remedy="start it with [profile], name, summary and precision, or extends",
        )
    parent = about.get("extends")
    if parent is None:
        return source, _merge({}, own)
    if not isinstance(parent, str):
        raise ProfileError(
            "`extends` must be a name or a path",
            found_in=f"{source}, [profile]",
            remedy='extends = "cpu"',
        )
    if "name" not in about:
        raise ProfileError(
            f"a profile that extends {parent!r} has no name of its own: its variant would be "
            "called like that one's",
            found_in=f"{source}, [profile]",
            remedy='name = "mine"',
        )
    if parent.endswith(".toml"):
        parent = str(Path(source).parent / parent)
    _, inherited = _read_family(parent, (*children, source))
    return source, _merge(inherited, own)


def _refuse_repeated_passes(passes: object, source: str) -> None:
    """Reject a repeated pass in a file, because the second would silently change the first."""
    entries = passes if isinstance(passes, list) else []
    names = [entry.get("name") for entry in entries if isinstance(entry, dict)]
    for name in names:
        if names.count(name) > 1:
            raise ProfileError(
                f"the pass {name!r} stands {names.count(name)} times in one profile",
                found_in=f"{source}, pass[{name}]",
                remedy="put all its settings into one [[pass]]",
            )


def _read(name_or_path: str, children: tuple[str, ...]) -> tuple[str, str]:
    refusal = partial(ProfileError, found_in=children[-1] if children else None)
    is_path = name_or_path.endswith(".toml") or "/" in name_or_path
    if is_path:
        path = Path(name_or_path)
        try:
            return str(path.resolve()), path.read_text(encoding="utf-8")
        except OSError as error:
            raise refusal(
                f"cannot read the profile {path}: {error.strerror}",
                remedy="check the path; edgepack profiles list shows those that are shipped",
            ) from error
        except UnicodeDecodeError as error:
            raise refusal(
                f"the profile {path} is not text: {error.reason} at byte {error.start}",
                remedy="save it as UTF-8",
            ) from error
    known = list_profiles()
    if name_or_path not in known:
        near = difflib.get_close_matches(name_or_path, known, n=1)
        hint = ""
        if near:
            hint = f'extends = "{near[0]}", or ' if children else f"--profile {near[0]}, or "
        raise refusal(
            f"there is no profile '{name_or_path}'",
            found_in="; ".join((*children[-1:], f"shipped profiles: {', '.join(known)}")),
            remedy=f"{hint}a path that ends in .toml",
        )
    file = f"{name_or_path}.toml"
    return file, (resources.files(_SHIPPED) / file).read_text(encoding="utf-8")


def _merge(parent: Mapping[str, Any], child: Mapping[str, Any]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for key in (*parent, *(key for key in child if key not in parent)):
        if key not in child:
            merged[key] = parent[key]
        elif isinstance(parent.get(key), dict) and isinstance(child[key], dict):
            merged[key] = _merge(parent[key], child[key])
        elif key == "pass" and isinstance(child[key], list):
            merged[key] = _merge_passes(parent.get(key, []), child[key])
        else:
            merged[key] = child[key]
    return merged


def _merge_passes(parent: list[Any], child: list[Any]) -> list[Any]:
    merged = list(parent)
    for entry in child:
        name = entry.get("name") if isinstance(entry, dict) else None
        for index, inherited in enumerate(merged):
            if isinstance(inherited, dict) and inherited.get("name") == name:
                merged[index] = _merge(inherited, entry)
                break
        else:
            merged.append(entry)
    return merged


def describe_passes(profile: Profile) -> Iterator[str]:
    """Yield the recipe in words, a line per pass, for `edgepack profiles show` and the report."""
    for entry in profile.passes:
        settings = msgspec.to_builtins(entry)
        name = settings.pop("name")
        words = ", ".join(f"{key} {in_words(value)}" for key, value in settings.items())
        yield f"{name}: {words}" if words else name


def in_words(value: object) -> str:
    """Return a setting as in a profile, without quotes."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return f"[{', '.join(in_words(entry) for entry in value)}]"
    if isinstance(value, dict):
        return ", ".join(f"{key} {in_words(entry)}" for key, entry in value.items()) or "none"
    return str(value) or "none"

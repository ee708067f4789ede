"""Check that a provider and a session support the options of a profile, and later passes its
operators.

ONNX Runtime silently accepts session entries that nobody reads, and providers silently accept
unknown values: a setting for faster devices then has no effect on any device. The documented
options of each provider are data next to the profiles (`options/NAME.toml`), with their source. An
option that is newer than the list is named under `unchecked`.
"""

import difflib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from typing import Literal, NamedTuple

from edgepack.decoding import decode_toml
from edgepack.packager.profiles.pass_settings import Float16, FuseTransformer, Optimize, Quantize
from edgepack.packager.profiles.schema import Limits, Profile
from edgepack.packager.profiles.section import Section
from edgepack.packager.wording import toml_key

_STANDARD = frozenset({"LayerNormalization", "Gelu"})


_FOLDER = "options"

SESSION = "session"

_MOST_NAMED = 60

Kind = tuple[str, ...] | Literal["text", "code", "path", "number", "flag", "boolean"]
"""Values of an option: one of these words, any text, a file with code that the provider loads, a
file or folder that it reads or writes, a whole number from 0 on, 0 or 1, or also `true` and
`false`."""

_WORDS = {"flag": ("0", "1"), "boolean": ("0", "1", "true", "false", "True", "False")}


class Contradiction(NamedTuple):
    """Contradictory settings: place, reason and remedy."""

    place: str
    problem: str
    remedy: str


def check_optimization(profile: Profile) -> Iterator[Contradiction]:
    """Find levels and fusions that the provider or the lowering cannot use."""
    lowering = profile.lowering
    for entry in profile.passes:
        if isinstance(entry, Optimize) and entry.level != "O1":
            yield from _check_level(entry.level, profile.limits)
            if isinstance(lowering, Quantize):
                yield Contradiction(
                    "pass[optimize].level",
                    f"{entry.level} makes fused operators, which have no integer form, and "
                    "quantize comes after it",
                    "level = 'O1'",
                )
            if entry.level == "O4" and not (
                isinstance(lowering, Float16) and profile.device.type == "gpu"
            ):
                yield Contradiction(
                    "pass[optimize].level",
                    "O4 is for GPUs and half precision",
                    "[[pass]] name = 'float16' on a device of type 'gpu', or level = 'O3'",
                )
        if isinstance(entry, FuseTransformer):
            for op_type in entry.ops:
                if op_type not in _STANDARD and not profile.limits.reads_microsoft(op_type):
                    yield Contradiction(
                        "pass[fuse_transformer].ops",
                        f"{op_type} is ONNX Runtime's own, and the provider does not read it",
                        "leave it out, or name it in limits.microsoft_ops",
                    )


def _check_level(level: str, limits: Limits) -> Iterator[Contradiction]:
    if not limits.reads_microsoft("*"):
        yield Contradiction(
            "pass[optimize].level",
            f"{level} makes operators of ONNX Runtime's own, and the provider does not read all "
            "of them",
            "level = 'O1', or limits.microsoft_ops = ['*'] where it does",
        )


class _Options(Section, frozen=True, kw_only=True):
    """A file of `options/`: a name that ends in `.*` stands for all that begin so."""

    options: dict[str, Kind]


def check_options(profile: Profile) -> Iterator[Contradiction]:
    """Find unknown options and session entries, and impossible values."""
    given = profile.provider
    unchecked = set(given.unchecked)
    provider = profile.device.provider
    known = _known(provider)
    if known is not None:
        for place, options in (
            ("provider.options", given.options),
            ("provider.decoder_options", given.decoder_options),
            ("compile.options", profile.compile.options),
        ):
            yield from _check(options, known, unchecked, place, provider)
    session = _known(SESSION) or {}
    yield from _check(given.session, session, unchecked, "provider.session", "a session")
    for name in given.unchecked:
        own = {**given.options, **given.decoder_options}
        if name not in {**own, **profile.compile.options, **given.session}:
            yield Contradiction(
                "provider.unchecked",
                f"'{name}' is to stay unchecked, and no option has that name",
                f"remove '{name}'",
            )


def names_file(provider: str, option: str) -> bool:
    """Return whether a provider loads, reads or writes the file that an option names.

    An option that is missing from the provider's list may do so: its meaning is unknown here.

    Args:
        provider: Its name; `SESSION` for entries of a session.
        option: The option's name.
    """
    known = _known(provider)
    return known is None or _kind_of(option, known) in (None, "code", "path")


def _check(
    options: Mapping[str, str],
    known: Mapping[str, Kind],
    unchecked: set[str],
    place: str,
    whose: str,
) -> Iterator[Contradiction]:
    for name, value in options.items():
        if name in unchecked:
            continue
        newer = f"unchecked = ['{name}'] in [provider] where it is newer than edgepack's list"
        kind = _kind_of(name, known)
        if kind is None:
            near = difflib.get_close_matches(name, known, n=1)
            some = ", ".join(list(known)[:_MOST_NAMED]) or "none"
            yield Contradiction(
                f"{place}.{toml_key(name)}",
                f"{whose} knows no option '{name}'" + ("" if near else f"; known are: {some}"),
                f"{toml_key(near[0])}, or {newer}" if near else f"remove it, or {newer}",
            )
        elif allowed := _refusal(value, kind):
            yield Contradiction(
                f"{place}.{toml_key(name)}",
                f"{name} is '{value}'; {allowed}",
                f"one of these, or {newer}",
            )


def _kind_of(name: str, known: Mapping[str, Kind]) -> Kind | None:
    if name in known:
        return known[name]
    for pattern, kind in known.items():
        if pattern.endswith(".*") and name.startswith(pattern[:-1]):
            return kind
    return None


def _refusal(value: str, kind: Kind) -> str:
    """Return the allowed values instead of a value; "" if the value is allowed."""
    if kind in ("text", "code", "path"):
        return ""
    if kind == "number":
        return "" if value.isascii() and value.isdigit() else "allowed is a whole number from 0 on"
    words = kind if isinstance(kind, tuple) else _WORDS[kind]
    return "" if value in words else f"allowed are: {', '.join(words)}"


@cache
def _known(name: str) -> Mapping[str, Kind] | None:
    """Return the documented options of a provider or of sessions; None for an undocumented
    provider.
    """
    file = resources.files("edgepack.profiles") / _FOLDER / f"{name}.toml"
    if not file.is_file():
        return None
    return decode_toml(file.read_bytes(), _Options).options

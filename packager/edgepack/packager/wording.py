"""Names in forms for files and for people."""

import difflib
from collections.abc import Callable, Collection, Sequence

import tomlkit

from edgepack.errors import BuildError
from edgepack.text import counted, printable


def toml_key(name: str) -> str:
    """Return a name as a TOML key, quoted where a bare key is not allowed.

    Args:
        name: Any name, for example an input's.
    """
    return printable(tomlkit.key([name]).as_string())


def short_provider(provider: str, device: str) -> str:
    """Return a provider and its device kind in a word or two."""
    name = provider.removesuffix("ExecutionProvider")
    return name if name.lower() == device else f"{name} {device}"


def count_held_out(count: int, *, are_series: bool) -> str:
    """Return how many samples, or series of samples, gave a verdict: `3 held-out series`."""
    return f"{count} held-out series" if are_series else counted(count, "held-out sample")


def some_of(names: Sequence[str], most: int) -> str:
    """Return the first of some names, and a sign where there are more."""
    return ", ".join(names[:most]) + (" …" if len(names) > most else "")


def unknown_name(
    noun: str, name: str, known: Collection[str], found_in: str, remedy: Callable[[str], str]
) -> BuildError:
    """Return the error for an input or output that the model does not have.

    Args:
        noun: "input" or "output".
        name: Given name.
        known: The model's own names, at least 1.
        found_in: Place of the name.
        remedy: Builds the text to write, from the probable name.
    """
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
    return BuildError(
        f"the model has no {noun} {name!r}; it has {', '.join(known)}",
        found_in=found_in,
        remedy=remedy(near[0]),
    )

"""What an option is told that names an input which the model does not have."""

import difflib
from collections.abc import Sequence

from edgepack.errors import BuildError


def unknown_input(option: str, name: str, known: Sequence[str]) -> BuildError:
    """The error, with the name that was probably meant.

    Args:
        option: The option, e.g. `--shape`.
        name: What it named.
        known: The model's inputs, at least one.
    """
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    return BuildError(
        f"the model has no input {name!r}; it has {', '.join(known)}",
        found_in=f"{option} {name}=…",
        remedy=f"{option} {close[0] if close else known[0]}=…",
    )

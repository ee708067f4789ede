"""Public names of a package, loaded at first use, so that importing the package stays cheap."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module


def load_on_first_use(
    package: str, modules: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Make the functions by which Python asks a package for missing names.

    Hide the assignment from type checkers, which would accept any name:

        if not TYPE_CHECKING:
            __getattr__, __dir__ = load_on_first_use(__name__, _MODULES)

    Args:
        package: The package's `__name__`.
        modules: The module of each name.

    Returns:
        The package's `__getattr__` and `__dir__` (PEP 562).
    """
    names = vars(sys.modules[package])

    def get(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        names[name] = getattr(import_module(modules[name]), name)
        return names[name]

    return get, lambda: sorted({*names, *modules})

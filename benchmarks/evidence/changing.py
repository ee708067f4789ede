"""Constants with another value, for a while."""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.evidence.constants import Constant

FACTORS = (0.5, 2.0)


@contextmanager
def changed(constant: Constant, factor: float) -> Iterator[None]:
    """Give a constant another value, a public constant in each module that has imported it."""
    value = _times(constant.value, factor)
    own = importlib.import_module(constant.module)
    old = getattr(own, constant.name)
    holders = [
        module
        for name, module in list(sys.modules.items())
        if name == constant.module
        or (
            name.startswith("edgepack.")
            and not constant.name.startswith("_")
            and getattr(module, constant.name, None) is old
        )
    ]
    for module in holders:
        setattr(module, constant.name, value)
    try:
        yield
    finally:
        for module in holders:
            setattr(module, constant.name, old)


def _times(value: object, factor: float) -> object:
    if isinstance(value, tuple):
        return tuple(_times(one, factor) for one in value)
    if isinstance(value, dict):
        return {key: _times(one, factor) for key, one in value.items()}
    if isinstance(value, int):
        return max(round(value * factor), 1)
    return value * factor if isinstance(value, float) else value

"""Modules that the first test that uses them imports: each worker collects all files of tests."""

import importlib
from typing import Any


class _LateModule:
    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # Pytest asks each object of a file for `_mock_name`.
            raise AttributeError(name)
        return getattr(importlib.import_module(self._name), name)


def late(name: str) -> Any:
    """Return a stand-in for a module that takes long to import or has no usable types."""
    return _LateModule(name)

"""Examples on a page of the Python API, from docstrings and from the page."""

import inspect
import re
import textwrap
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

PAGES = Path(__file__).parents[2] / "docs" / "reference"
_SECTION = re.compile(r"^::: (edgepack\.\w+)\.(\w+)$", re.M)
_CODE = re.compile(r"^ *```python\n(.*?)\n *```", re.M | re.S)


def examples(package: str) -> dict[str, list[str]]:
    """Return the examples of each name with a section on the package's page, in the page's order.

    Args:
        package: `packager`, `agent` or `fleet`.
    """
    page = (PAGES / f"api-{package}.md").read_text(encoding="utf-8")
    sections = _SECTION.split(page)[1:]
    found: dict[str, list[str]] = {}
    for module, name, text in zip(*[iter(sections)] * 3, strict=True):
        documented = _docstrings(getattr(import_module(module), name))
        found[name] = [code for part in (*documented, text) for code in _blocks(part)]
    return found


def run_examples(package: str) -> dict[str, Any]:
    """Run a page from top to bottom as a single program; return its names."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for name, blocks in examples(package).items():
        for block in blocks:
            exec(compile(block, f"example of {package}.{name}", "exec"), names)
    return names


def _docstrings(item: Any) -> Iterator[str]:
    """Yield the docstrings of an item, and of its members in the page's order: bases first."""
    yield inspect.getdoc(item) or ""
    bases = reversed(item.__mro__) if inspect.isclass(item) else ()
    for base in (base for base in bases if base.__module__.startswith("edgepack")):
        for name, member in vars(base).items():
            if not name.startswith("_") and (inspect.isfunction(member) or _is_property(member)):
                yield inspect.getdoc(member) or ""


def _is_property(member: object) -> bool:
    return isinstance(member, property)


def _blocks(text: str) -> Iterator[str]:
    for code in _CODE.findall(text):
        yield textwrap.dedent(code)

"""Constants that a verdict reads, by the lines of code that ran."""

import ast
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks.evidence.constants import ROOT, Constant, module_of

_CODE = ("agent/edgepack", "packager/edgepack")


def find_lines(
    constants: Iterable[Constant], root: Path = ROOT
) -> dict[str, dict[int, frozenset[str]]]:
    """Return the keys of the constants that each line of each file reads.

    Args:
        constants: The constants.
        root: Root of the project.
    """
    of_module: dict[str, dict[str, str]] = defaultdict(dict)
    for constant in constants:
        of_module[constant.module][constant.name] = constant.key
    found = {}
    for folder in _CODE:
        for file in (root / folder).rglob("*.py"):
            tree = ast.parse(file.read_text(encoding="utf-8"))
            known = dict(of_module.get(module_of(str(file.relative_to(root))), {}))
            for node in ast.walk(tree):
                if isinstance(node, ast.ImportFrom):
                    names = of_module.get(node.module or "", {})
                    known |= {
                        one.asname or one.name: names[one.name]
                        for one in node.names
                        if one.name in names
                    }
            lines: dict[int, frozenset[str]] = {}
            for node in ast.walk(tree) if known else ():
                if isinstance(node, ast.Name) and node.id in known:
                    lines[node.lineno] = lines.get(node.lineno, frozenset()) | {known[node.id]}
            if lines:
                found[str(file)] = lines
    return found


def find_reads(
    run: Callable[[], object], lines: dict[str, dict[int, frozenset[str]]]
) -> frozenset[str]:
    """Return the keys of the constants that a function reads.

    Args:
        run: The function.
        lines: See `find_lines`.
    """
    read: set[str] = set()

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        of_file = lines.get(frame.f_code.co_filename)
        if of_file is None:
            return None
        if event == "line":
            read.update(of_file.get(frame.f_lineno, ()))
        return trace

    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(None)
    return frozenset(read)

"""Check that outputs have one vocabulary: the names of tasks in `edgepack.tasks.table`.

    python docs/task_words.py

A collection of words (a tuple, a set, keys or values, a Literal, an Enum, a split text) that has
several names of tasks must not have other words. Names of earlier vocabularies, and limits named
`*_min`, must not come back.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from edgepack.tasks.description import IGNORED, NOT_EVALUATED
from edgepack.tasks.table import TASKS

ROOT = Path(__file__).parents[1]
CODE = ("agent/edgepack", "fleet/edgepack", "packager/edgepack")
KNOWN = {*TASKS, *NOT_EVALUATED, IGNORED}
SEVERAL = 3
"""Names of tasks in a collection from which on its words are taken for tasks."""
EARLIER = {"OutputKind", "Meaning", "MetricName", "OutputDistance", "_TASKS"}
UNIONS = {"Head", "Agreement"}
"""Names of unions of an earlier vocabulary; a class may have the name."""
LEAST = {"cosine_min", "opset_min", "placement_min"}
"""Limits that are no share of a task."""


def find_faults(root: Path = ROOT) -> Iterator[str]:
    """Yield a sentence for each collection with other words, and for each earlier name.

    Args:
        root: Root of the project.
    """
    for folder in CODE:
        for file in sorted((root / folder).rglob("*.py")):
            where = file.relative_to(root)
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if not isinstance(node, ast.expr | ast.ClassDef | ast.alias | ast.Assign):
                    continue
                for words in _words(node):
                    if len(words & KNOWN) >= SEVERAL and (strange := sorted(words - KNOWN)):
                        yield f"{where}:{node.lineno}: {', '.join(strange)}: no task of `TASKS`"
                for name in _earlier(node):
                    yield f"{where}:{node.lineno}: {name} named an earlier vocabulary"


def _earlier(node: ast.AST) -> Iterator[str]:
    """Yield each name of an earlier vocabulary that a node has."""
    match node:
        case ast.Name(id=name) | ast.ClassDef(name=name) | ast.alias(name=name):
            named = [name]
        case ast.Attribute(attr=name):
            named = [name]
        case ast.Constant(value=str() as name) if name.endswith("_min") and name.isidentifier():
            named = [name]
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.BinOp(op=ast.BitOr())):
            yield from UNIONS.intersection([name])
            return
        case _:
            return
    for name in named:
        is_least = name.endswith("_min") and name not in LEAST
        if name in EARLIER or is_least:
            yield name


def _words(node: ast.AST) -> Iterator[set[str]]:
    """Yield the texts that a collection lists."""
    listed: list[list[ast.expr | None]] = []
    match node:
        case ast.Tuple(elts=elements) | ast.List(elts=elements) | ast.Set(elts=elements):
            pairs = [one.elts[0] for one in elements if isinstance(one, ast.Tuple) and one.elts]
            listed = [list(elements), list(pairs)]
        case ast.Dict(keys=keys, values=values):
            listed = [keys, list(values)]
        case ast.Call(func=ast.Name(id="dict"), keywords=given):
            yield {one.arg for one in given if one.arg}
        case ast.Call(func=ast.Attribute(attr="split", value=ast.Constant(value=str() as text))):
            yield set(text.split())
        case ast.ClassDef(body=body):
            listed = [[one.value for one in body if isinstance(one, ast.Assign | ast.AnnAssign)]]
            if any("Enum" in ast.unparse(base) for base in node.bases):
                yield {name.lower() for name in _assigned(body)}
    for each in listed:
        found = (one.value for one in each if isinstance(one, ast.Constant))
        yield {value for value in found if isinstance(value, str)}


def _assigned(body: list[ast.stmt]) -> Iterator[str]:
    for one in body:
        if isinstance(one, ast.Assign):
            yield from (target.id for target in one.targets if isinstance(target, ast.Name))


def main() -> int:
    """Print the faults; return 1 after a fault."""
    faults = list(find_faults())
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())

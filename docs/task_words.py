"""Check that outputs have one vocabulary: the names of tasks in `edgepack.tasks.table`.

    python docs/task_words.py

A collection of words (a tuple, a set, keys, a Literal, an Enum) that has several names of tasks
must not have other words. Names of earlier vocabularies must not come back.
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


def find_faults(root: Path = ROOT) -> Iterator[str]:
    """Yield a sentence for each collection with other words, and for each earlier name.

    Args:
        root: Root of the project.
    """
    for folder in CODE:
        for file in sorted((root / folder).rglob("*.py")):
            where = file.relative_to(root)
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if not isinstance(node, ast.expr | ast.ClassDef):
                    continue
                words = _words(node)
                if len(words & KNOWN) >= SEVERAL and (strange := sorted(words - KNOWN)):
                    yield f"{where}:{node.lineno}: {', '.join(strange)}: no task of `TASKS`"
                names = [getattr(node, "id", ""), getattr(node, "name", "")]
                for name in EARLIER.intersection(filter(None, names)):
                    yield f"{where}:{node.lineno}: {name} named an earlier vocabulary"


def _words(node: ast.AST) -> set[str]:
    """Return the texts that a collection lists."""
    listed: list[ast.expr | None] = []
    match node:
        case ast.Tuple(elts=elements) | ast.List(elts=elements) | ast.Set(elts=elements):
            listed = list(elements)
        case ast.Dict(keys=keys):
            listed = keys
        case ast.ClassDef(body=body):
            listed = [one.value for one in body if isinstance(one, ast.Assign | ast.AnnAssign)]
    return {
        one.value for one in listed if isinstance(one, ast.Constant) and isinstance(one.value, str)
    }


def main() -> int:
    """Print the faults; return 1 after a fault."""
    faults = list(find_faults())
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())

"""Constants that decide verdicts: constants in the code, and their entries in `constants.toml`."""

import ast
import tomllib
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).with_name("constants.toml")
FOLDERS = (
    "agent/edgepack/tasks",
    "packager/edgepack/packager/gates",
    "packager/edgepack/packager/pipeline",
    "packager/edgepack/packager/runtime",
    "packager/edgepack/packager/search",
    "packager/edgepack/packager/tasks",
)
"""Folders whose constants can decide a verdict."""

SECTIONS = {
    "definition": "follows from a definition, a format or another library",
    "bound": "is a statistical bound with a stated confidence",
    "limit": "limits work, time or what is shown",
    "measured": "`make evidence` measures its effect",
    "unproven": "has no evidence from models that it was not chosen on",
}


class Constant(NamedTuple):
    """A number, or a collection of numbers, with a name at the top of a module.

    Attributes:
        file: Path of the module, from the project's root.
        name: Name of the constant.
        value: Its value.
    """

    file: str
    name: str
    value: object

    @property
    def key(self) -> str:
        """The key of its entry in `constants.toml`."""
        return f"{self.file}:{self.name}"

    @property
    def module(self) -> str:
        """The name by which Python imports its module."""
        return module_of(self.file)


def module_of(file: str) -> str:
    """Return the name by which Python imports a file, from its path in the project."""
    parts = Path(file).with_suffix("").parts
    return ".".join(parts[parts.index("edgepack") :])


def find_constants(root: Path = ROOT) -> Iterator[Constant]:
    """Yield each constant of `FOLDERS`, in the order of files and lines.

    Args:
        root: Root of the project.
    """
    for folder in FOLDERS:
        for file in sorted((root / folder).rglob("*.py")):
            numbers: dict[str, object] = {}
            for statement in ast.parse(file.read_text(encoding="utf-8")).body:
                if isinstance(statement, ast.Assign):
                    target, value = statement.targets[0], statement.value
                elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
                    target, value = statement.target, statement.value
                else:
                    continue
                if isinstance(target, ast.Name) and _is_numeric(value, numbers):
                    number = eval(compile(ast.Expression(value), str(file), "eval"), {}, numbers)
                    numbers[target.id] = number
                    yield Constant(str(file.relative_to(root)), target.id, number)


def _is_numeric(node: ast.expr, known: Container[str]) -> bool:
    """Return True for numbers, their collections, and sums and products of them and of `known`."""
    match node:
        case ast.Constant(value=value):
            return isinstance(value, int | float) and not isinstance(value, bool)
        case ast.Name(id=name):
            return name in known
        case ast.UnaryOp(operand=operand):
            return _is_numeric(operand, known)
        case ast.BinOp(left=left, right=right):
            return _is_numeric(left, known) and _is_numeric(right, known)
        case (
            ast.Tuple(elts=items)
            | ast.List(elts=items)
            | ast.Set(elts=items)
            | ast.Dict(values=items)
        ):
            return bool(items) and all(_is_numeric(item, known) for item in items)
    return False


def read_list(path: Path = LIST) -> dict[str, Mapping[str, str]]:
    """Return the entries of `constants.toml` by section: key to reason.

    Args:
        path: The file.
    """
    return dict(tomllib.loads(path.read_text(encoding="utf-8")))


def find_faults(root: Path = ROOT, path: Path = LIST) -> list[str]:
    """Return a sentence for each constant without an entry, and for each wrong entry.

    Args:
        root: Root of the project.
        path: The list.
    """
    listed = read_list(path)
    entries = [(section, key) for section, rows in listed.items() for key in rows]
    keys = [key for _, key in entries]
    known = {constant.key for constant in find_constants(root)}
    faults = [f"section [{name}] is not known" for name in listed if name not in SECTIONS]
    faults += [
        f"{key} decides verdicts and is not in {path.name}: add it to the section that is true, "
        "with the reason"
        for key in sorted(known - set(keys))
    ]
    faults += [f"{key} is in {path.name}, not in the code" for key in sorted(set(keys) - known)]
    faults += [f"{key} has two entries" for key in sorted(known) if keys.count(key) > 1]
    faults += [f"{key} has no reason" for section, key in entries if not listed[section][key]]
    return faults

"""Constants that decide verdicts: constants in the code, and their entries in `constants.toml`."""

import ast
import re
import tomllib
from collections.abc import Container, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).with_name("constants.toml")
FOLDERS = (
    "agent/edgepack/agent/generation",
    "agent/edgepack/agent/runtime",
    "agent/edgepack/agent/server",
    "agent/edgepack/agent/serving",
    "agent/edgepack/agent/telemetry",
    "agent/edgepack/agent/update",
    "agent/edgepack/agent/watch",
    "agent/edgepack/bundle",
    "agent/edgepack/stages",
    "agent/edgepack/tasks",
    "fleet/edgepack/fleet/database",
    "fleet/edgepack/fleet/rollouts",
    "packager/edgepack/packager/gates",
    "packager/edgepack/packager/graph",
    "packager/edgepack/packager/passes",
    "packager/edgepack/packager/pipeline",
    "packager/edgepack/packager/runtime",
    "packager/edgepack/packager/samples",
    "packager/edgepack/packager/search",
    "packager/edgepack/packager/source",
    "packager/edgepack/packager/stages",
    "packager/edgepack/packager/tasks",
)
"""Folders whose constants can decide a verdict. A search judges all that `quantization` makes."""

_LIMIT_BY_NAME = re.compile(r"_?MAX_\w+|(\w+\.)?\w+_(S|DAYS|BYTES|s|days|bytes)")
"""Names of times, of sizes in bytes and of the most that is accepted: limits without an entry."""

_COMPARE_WITH = ("min", "max")
_ROUNDING = 1e-3
_UNITS = 1e6
_PLAIN = (0.5, 1.0, 2.0)
"""Numbers without a name: signs and halves, guards against rounding, and units."""

SECTIONS = {
    "definition": "follows from a definition, a format or another library",
    "bound": "is a statistical bound with a stated confidence",
    "limit": "limits work, time or what is shown",
    "benchmarked": "another benchmark publishes the errors of the verdicts that it decides",
    "measured": "`make evidence` measures its effect",
    "unproven": "has no evidence from models that it was not chosen on",
}


class Constant(NamedTuple):
    """A number, or a collection of numbers, with a name at the top of a module, or a default of a
    field.

    Attributes:
        file: Path of the module, from the project's root.
        name: Name of the constant, or class and name of the field.
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
            numbers, place = _numbers(file, root), str(file.relative_to(root))
            for statement in ast.parse(file.read_text(encoding="utf-8")).body:
                for name, value in _assigned(statement):
                    if _is_numeric(value, numbers) and not _LIMIT_BY_NAME.fullmatch(name):
                        yield Constant(place, name, numbers[name])
                for name, value in _defaults(statement):
                    if _decides(value) and not _LIMIT_BY_NAME.fullmatch(name):
                        yield Constant(place, name, _evaluate(value, {}))


def find_literals(root: Path = ROOT) -> Iterator[str]:
    """Yield the place of each number without a name that values are compared with, or that is the
    default of a parameter.

    Args:
        root: Root of the project.
    """
    for folder in FOLDERS:
        for file in sorted((root / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                for part in _compared(node):
                    if _decides(part):
                        yield f"{file.relative_to(root)}:{part.lineno}: {ast.unparse(part)}"


def _compared(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the numbers that a comparison, `min`, `max` or a default of a parameter has."""
    match node:
        case ast.Compare(left=left, comparators=others):
            found = [left, *others]
        case ast.Call(func=ast.Name(id=name), args=given) if name in _COMPARE_WITH:
            found = given
        case ast.FunctionDef(args=taken) | ast.Lambda(args=taken):
            found = [*taken.defaults, *(one for one in taken.kw_defaults if one is not None)]
        case _:
            return
    for part in found:
        yield from (one for one in ast.walk(part) if isinstance(one, ast.Constant))


def _decides(node: ast.expr) -> bool:
    """Return True for a fraction that is no rounding, half or unit."""
    if not (isinstance(node, ast.Constant) and isinstance(node.value, float)):
        return False
    return _ROUNDING < node.value < _UNITS and node.value not in _PLAIN


def _defaults(statement: ast.stmt) -> Iterator[tuple[str, ast.expr]]:
    """Yield class and name of each field with a default."""
    if isinstance(statement, ast.ClassDef):
        for field in statement.body:
            for name, value in _assigned(field):
                yield f"{statement.name}.{name}", value


def _imported(statement: ast.stmt, root: Path) -> dict[str, object]:
    """Return the numbers that a statement imports from another module of the project."""
    if not isinstance(statement, ast.ImportFrom) or not statement.module:
        return {}
    path = Path(*statement.module.split(".")).with_suffix(".py")
    tops = dict.fromkeys(folder.partition("/")[0] for folder in FOLDERS)
    file = next((one for top in tops if (one := root / top / path).exists()), None)
    known = _numbers(file, root) if file else {}
    return {one.asname or one.name: known[one.name] for one in statement.names if one.name in known}


@cache
def _numbers(file: Path, root: Path) -> dict[str, object]:
    """Return the numbers at the top of a module."""
    numbers: dict[str, object] = {}
    for statement in ast.parse(file.read_text(encoding="utf-8")).body:
        numbers |= _imported(statement, root)
        for name, value in _assigned(statement):
            if _is_numeric(value, numbers):
                numbers[name] = _evaluate(value, numbers)
    return numbers


def _assigned(statement: ast.stmt) -> Iterator[tuple[str, ast.expr]]:
    """Yield each name that a statement assigns, with its value."""
    if isinstance(statement, ast.AnnAssign) and statement.value is not None:
        pairs: list[tuple[ast.expr, ast.expr]] = [(statement.target, statement.value)]
    elif isinstance(statement, ast.Assign):
        target, value = statement.targets[0], statement.value
        pairs = [(target, value)]
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            pairs = list(zip(target.elts, value.elts, strict=False))
    else:
        return
    for target, value in pairs:
        if isinstance(target, ast.Name):
            yield target.id, value


def _evaluate(node: ast.expr, known: Mapping[str, object]) -> object:
    """Return the value of a numeric expression; keys of a dict may be other names."""
    if isinstance(node, ast.Dict):
        keys = [key.value if isinstance(key, ast.Constant) else key for key in node.keys]
        return dict(zip(keys, (_evaluate(one, known) for one in node.values), strict=True))
    return eval(compile(ast.Expression(node), "constant", "eval"), {}, dict(known))


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
    faults += [
        f"{place} decides verdicts and has no name: name it at the top of the module"
        for place in find_literals(root)
    ]
    faults += [f"{key} is in {path.name}, not in the code" for key in sorted(set(keys) - known)]
    faults += [f"{key} has two entries" for key in sorted(known) if keys.count(key) > 1]
    faults += [f"{key} has no reason" for section, key in entries if not listed[section][key]]
    return faults

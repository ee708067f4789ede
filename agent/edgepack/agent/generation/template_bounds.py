"""A sandbox for chat templates that bounds steps, time and memory.

jinja2's immutable sandbox lets a template read no file and call no function of Python. A template
may still loop, or double a text again and again. Here

1. each turn of a loop and each call of a macro is a step, which also ends a template that runs
   for too long;
2. no value is longer than a limit: what makes a longer value of its operands is checked before;
3. filters, functions and methods are those of chat templates, and nothing that pads.
"""

import json
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import wraps
from typing import Any

from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

MOST_STEPS = 100_000
MOST_LETTERS = 1024 * 1024
"""Length of a value with all that is in it, and of the prompt, at most."""
MOST_MADE = 256 * 1024 * 1024
"""Characters, numbers and objects of all values that a rendering makes, at most."""
MOST_S = 2.0
_LARGEST = 2**53
_OBJECT_LETTERS = 8
"""Length of an object besides its characters."""
_MOST_INDENT = 16

_FILTERS = (
    *("abs", "attr", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first"),
    *("float", "forceescape", "int", "items", "join", "last", "length", "list", "lower", "map"),
    *("max", "min", "reject", "rejectattr", "replace", "reverse", "safe", "select", "selectattr"),
    *("sort", "string", "sum", "title", "tojson", "trim", "unique", "upper"),
)
_METHODS = (
    *("capitalize", "count", "endswith", "find", "index", "isalnum", "isalpha", "isdigit"),
    *("islower", "isspace", "istitle", "isupper", "join", "lower", "lstrip", "removeprefix"),
    *("removesuffix", "replace", "rfind", "rindex", "rsplit", "rstrip", "split", "splitlines"),
    *("startswith", "strip", "title", "upper"),
)
"""Methods of texts."""


class TemplateLimitError(Exception):
    """A template exceeds a limit."""


class _Generation(Extension):
    """The tag `generation` of transformers, which marks what an assistant says."""

    tags = {"generation"}  # noqa: RUF012 - as the base class has it

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        """Return what the tag encloses."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Environment of a chat template, for a single rendering at a time."""

    intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            extensions=["jinja2.ext.loopcontrols", _Generation],
        )
        self._steps = self._letters = self._made = 0
        self._until = 0.0
        known = {name: act for name, act in self.filters.items() if name in _FILTERS}
        own = {"tojson": _to_json, "replace": _replace, "join": _join}
        self.filters = {name: self._bound(act) for name, act in (known | own).items()}
        self.globals = {
            "range": self.globals["range"],
            "dict": dict,
            "namespace": self.globals["namespace"],
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
        }

    def begin(self) -> None:
        """Begin a rendering."""
        self._steps = self._letters = self._made = 0
        self._until = time.monotonic() + MOST_S

    def step(self, letters: int) -> str:
        """Count a step, which writes letters of the template."""
        self._steps += 1
        self._letters += letters
        if self._steps > MOST_STEPS:
            raise TemplateLimitError(f"the chat template takes more than {MOST_STEPS} steps")
        if time.monotonic() > self._until:
            raise TemplateLimitError(f"the chat template runs for more than {MOST_S:g} s")
        if self._letters > MOST_LETTERS:
            raise _too_long()
        return ""

    def write(self, value: Any) -> Any:
        """Count a value that the template writes."""
        self._letters += measure(value)
        if self._letters > MOST_LETTERS:
            raise _too_long()
        return value

    def made(self, value: Any) -> Any:
        """Return a new value of bounded length; all values together are bounded, too."""
        self._made += measure(value)
        if self._made > MOST_MADE:
            raise TemplateLimitError(f"the chat template makes more than {MOST_MADE} values")
        return value

    def joined(self, *values: Any) -> str:
        """Return texts one after the other, of bounded length."""
        texts = [str(self.made(value)) for value in values]
        _check(sum(map(len, texts)))
        return "".join(texts)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Compute an operator with two operands; see jinja2."""
        for one in (left, right):
            if isinstance(one, int) and abs(one) > _LARGEST:
                raise TemplateLimitError("the chat template computes with too large numbers")
        if operator == "**" or (operator == "%" and isinstance(left, str)):
            raise TemplateLimitError(f"the chat template uses the operator {operator}")
        if operator == "*":
            for one, number in ((left, right), (right, left)):
                if isinstance(number, int) and not isinstance(one, int | float):
                    _check(measure(one) * max(number, 0))
        if operator == "+" and not isinstance(left, int | float):
            _check(measure(left) + measure(right))
        return self.made(super().call_binop(context, operator, left, right))

    def call(self, context: Any, act: Any, /, *values: Any, **named: Any) -> Any:
        """Call a function; see jinja2."""
        if getattr(act, "__self__", None) is self:
            return act(*values)  # Without what jinja2 tells each call of the loop around.
        self.step(0)
        owner, name = getattr(act, "__self__", None), getattr(act, "__name__", "")
        if isinstance(owner, str):
            if name == "replace":
                _replace(owner, *values)
            if name == "join":
                values = (list(values[0]),)
                _join(values[0], owner)
        return self.made(super().call(context, act, *values, **named))

    def wrap_str_format(self, value: Any) -> None:
        """Return nothing: a format may pad to any length, so `format` is no safe attribute."""

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Check whether a template may read an attribute."""
        if isinstance(obj, str):
            return attr in _METHODS
        return super().is_safe_attribute(obj, attr, value)

    def _bound(self, act: Callable[..., Any]) -> Callable[..., Any]:
        """Return a filter that counts as a step, and whose result is bounded."""

        @wraps(act)  # Its attributes say what jinja2 passes first.
        def run(*values: Any, **named: Any) -> Any:
            self.step(0)
            return self.made(act(*values, **named))

        return run

    def compile_bounded(self, source: str) -> Any:
        """Return a template whose steps, values and letters are counted."""
        tree = self.parse(source)
        self._replace_values(tree)
        for kind in (nodes.For, nodes.Macro, nodes.CallBlock):
            found: list[Any] = list(tree.find_all(kind))
            for loop in found:
                body: list[nodes.Node] = loop.body
                letters = sum(length for part in body for length in _texts(part))
                body.insert(0, nodes.Output([self._call("step", nodes.Const(letters))]))
        tree.set_lineno(1)
        tree.set_environment(self)
        return self.from_string(tree)

    def _replace_values(self, node: nodes.Node) -> None:
        for name, value in node.iter_fields():
            if isinstance(value, nodes.Node):
                setattr(node, name, self._replaced(node, value))
            elif isinstance(value, list):
                value[:] = [
                    self._replaced(node, one) if isinstance(one, nodes.Node) else one
                    for one in value
                ]

    def _replaced(self, parent: nodes.Node, node: nodes.Node) -> nodes.Node:
        """Return a node that makes a value, within a call that checks the value."""
        self._replace_values(node)
        is_written = isinstance(parent, nodes.Output) and not isinstance(node, nodes.TemplateData)
        is_tuple = isinstance(node, nodes.Tuple) and node.ctx == "load"
        if isinstance(node, nodes.Concat):
            node = self._call("joined", *node.nodes)
        elif is_tuple or isinstance(node, nodes.List | nodes.Dict):
            node = self._call("made", node)
        return self._call("write", node) if is_written else node

    @staticmethod
    def _call(name: str, *values: nodes.Node) -> nodes.Call:
        return nodes.Call(nodes.EnvironmentAttribute(name), list(values), [], None, None)


def measure(value: Any) -> int:
    """Return the length of a value with all that is in it, each time that it is in it.

    Raises:
        TemplateLimitError: It is too long.
    """
    total, waiting = 0, [value]
    while waiting:
        one = waiting.pop()
        total += _OBJECT_LETTERS
        if isinstance(one, str | bytes):
            total += len(one)
        elif isinstance(one, Mapping):
            waiting += [*one.keys(), *one.values()]
        elif isinstance(one, list | tuple | set | frozenset):
            waiting += one
        _check(total)
    return total


def _texts(node: nodes.Node) -> Iterable[int]:
    """Yield the length of each text of the template in a node."""
    found = [node] if isinstance(node, nodes.TemplateData) else node.find_all(nodes.TemplateData)
    return (len(one.data) for one in found)


def _check(length: int) -> None:
    if length > MOST_LETTERS:
        raise _too_long()


def _too_long() -> TemplateLimitError:
    return TemplateLimitError(f"the chat template makes more than {MOST_LETTERS} characters")


def _replace(text: Any, old: Any, new: Any, count: Any = None) -> str:
    """Return a text with another text in place of a part."""
    before, old, new = str(text), str(old), str(new)
    number = -1 if count is None else int(count)
    _check(len(before) + (before.count(old) + 1) * len(new))
    return before.replace(old, new, number)


def _join(values: Iterable[Any], separator: Any = "", attribute: str | None = None) -> str:
    """Return texts with a separator between them."""
    if attribute is not None:
        raise TemplateLimitError("the chat template joins by an attribute: use map")
    texts = [str(value) for value in values]
    _check(sum(map(len, texts)) + len(texts) * len(str(separator)))
    joined: str = str(separator).join(texts)
    return joined


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **_: Any) -> str:
    """Return JSON, in the form of transformers."""
    if indent is not None and not 0 <= indent <= _MOST_INDENT:
        raise TemplateLimitError(f"the chat template indents by {indent}")
    text: str = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)
    return text


def _strftime_now(form: str) -> str:
    """Return the local time."""
    _check(len(form) * 1024)
    return datetime.now().astimezone().strftime(form)


def _raise_exception(problem: str) -> None:
    """Reject the messages, as the template says."""
    raise ValueError(problem)

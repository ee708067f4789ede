"""The model's own names in text for people.

`passes.names_apart` renames a name that equals a part of another name: `a/b` next to `a` becomes
`a|b`. Readers of a report or a refusal look for `a/b` in the model.
"""

import re
from collections.abc import Callable
from typing import Any

import msgspec
import onnx

from edgepack.decoding import convert_value
from edgepack.errors import EdgepackError
from edgepack.packager.reports.report import Report

_WORD = re.compile(r"[^\s,;'\"()]*\|[^\s,;'\"()]*")
"""What may be such a name."""

InOwnNames = Callable[[str], str]
"""Gives a text with the model's own names."""


def own_names(graph: onnx.GraphProto) -> InOwnNames:
    """Return a function that puts the source's names into texts.

    Args:
        graph: The source's main graph.
    """
    names = {name for node in graph.node for name in (node.name, *node.output)}
    names |= {tensor.name for tensor in graph.initializer}
    given = {name.replace("/", "|"): name for name in names if "/" in name}
    own = {new: name for new, name in given.items() if new not in names}

    def spell(word: re.Match[str]) -> str:
        name, slash, part = word[0].partition("/")
        found = own.get(name.rstrip("|"))
        return word[0] if found is None else f"{found}{slash}{part}"

    return lambda text: _WORD.sub(spell, text) if "|" in text else text


def name_in_report(report: Report, spell: InOwnNames) -> Report:
    """Return the same report, with the model's own names.

    Args:
        report: A report.
        spell: See `own_names`.
    """
    if b"|" not in msgspec.json.encode(report):
        return report
    return convert_value(_spelled(msgspec.to_builtins(report), spell), Report)


def name_in_error(error: EdgepackError, spell: InOwnNames) -> None:
    """Give an error the model's own names, in place."""
    error.problem = spell(error.problem)
    error.found_in = spell(error.found_in) if error.found_in else error.found_in
    error.remedy = spell(error.remedy) if error.remedy else error.remedy


def _spelled(value: Any, spell: InOwnNames) -> Any:
    if isinstance(value, str):
        return spell(value)
    if isinstance(value, list | tuple):
        return [_spelled(entry, spell) for entry in value]
    if isinstance(value, dict):
        return {key: _spelled(entry, spell) for key, entry in value.items()}
    return value

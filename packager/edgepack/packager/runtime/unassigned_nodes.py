"""Reasons why a provider left nodes to the CPU, from its own log.

ONNX Runtime's API gives the provider of a node, without the reason. Providers write their reason to
the verbose log; QNN (onnxruntime-qnn 2.7.0) writes three lines:

    … LogNodeSupport] Validation FAILED for 1 nodes in OrtNodeUnit (QuantizeLinear) :
        Operator type: QuantizeLinear Node name: x/QuantizeLinear Node index: 0
        REASON : QNN EP is configured to not take Q nodes that consume a graph input.
"""

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from edgepack.agent.runtime.placement import LeftNode
from edgepack.agent.runtime.runtime_words import without_colour

MOST_NODES = 200
_NODE = re.compile(r"^\s+Operator type: \S+ Node name: (.*) Node index: \d+\s*$")
_REASON = re.compile(r"^\s+REASON : (.*?)\s*$")
_LONGEST_REASON = 300
_FAILED = re.compile(
    r"GetCapability\(\) for \S+ failed with error: (?:\[ONNXRuntimeError\] : \d+ : \w+ : )?(.*?)"
    r"\s*$"
)
"""How ONNX Runtime logs that a plug-in could not even say which nodes it takes; it then goes on
with the CPU alone."""


class UnassignedNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node that the provider left.

    Attributes:
        name, op: The node and its operator.
        reason: The provider's words; "" without a reason.
    """

    name: str
    op: str
    reason: str = ""


def explain_left(left: Iterable[LeftNode], log: Path) -> tuple[UnassignedNode, ...]:
    """Find the reasons for nodes in a provider's log.

    Args:
        left: The nodes.
        log: The verbose log of the session that was made.

    Returns:
        The first `MOST_NODES`, in the order given.
    """
    with log.open(encoding="utf-8", errors="replace") as lines:
        reasons = read_reasons(lines)
    return tuple(
        UnassignedNode(name=node.name, op=node.op_type, reason=reasons.get(node.name, ""))
        for node in list(left)[:MOST_NODES]
    )


def read_failure(log: Path) -> str:
    """Return why a provider did not name its nodes; "" if named."""
    with log.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if found := _FAILED.search(without_colour(line)):
                return found.group(1)[:_LONGEST_REASON]
    return ""


def read_reasons(lines: Iterable[str]) -> dict[str, str]:
    """Return the reason for each node that a log names as not supported; the last reason counts."""
    reasons: dict[str, str] = {}
    named: list[str] = []
    for line in lines:
        plain = without_colour(line)
        node, reason = _NODE.match(plain), _REASON.match(plain)
        if node:
            named.append(node.group(1))
        elif reason:
            reasons |= dict.fromkeys(named, reason.group(1)[:_LONGEST_REASON])
        if not node:
            named = []
    return reasons


@contextmanager
def stderr_in(path: Path) -> Iterator[None]:
    """Send native code's stderr to a file while the block runs."""
    kept = os.dup(2)
    with path.open("wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)

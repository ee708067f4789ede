"""Placement of nodes on providers, as ONNX Runtime reports after a session is created."""

from collections import Counter
from typing import Any, NamedTuple

from edgepack.bundle.manifest import Placement

RECORD = {"session.record_ep_graph_assignment_info": "1"}
"""The session setting that makes ONNX Runtime keep the assignment (1.24 and later)."""


class LeftNode(NamedTuple):
    """A node that the provider did not take."""

    name: str
    op_type: str


def read_left_nodes(inference_session: Any, provider: str) -> tuple[LeftNode, ...]:
    """Return the nodes that other providers run, sorted; none if the assignment is unknown.

    Args:
        inference_session, provider: As for `read_placement`.
    """
    ask = getattr(inference_session, "get_provider_graph_assignment_info", None)
    groups = ask() if ask is not None else []
    return tuple(
        sorted(
            LeftNode(node.name, node.op_type)
            for group in groups
            if group.ep_name != provider
            for node in group.get_nodes()
        )
    )


def read_placement(inference_session: Any, provider: str) -> Placement:
    """Count the nodes of a session by provider.

    A precompiled context counts as a single node of its provider. Without an assignment by ONNX
    Runtime, only a session on a single provider is certain; other sessions have no numbers.

    Args:
        inference_session: An `onnxruntime.InferenceSession` made with `RECORD` set.
        provider: The provider to count.

    Returns:
        The placement; `verified` is False, and the numbers are 0, if the assignment is unknown.
    """
    ask = getattr(inference_session, "get_provider_graph_assignment_info", None)
    groups = ask() if ask is not None else []
    taken = 0
    left: Counter[str] = Counter()
    for group in groups:
        nodes = group.get_nodes()
        if group.ep_name == provider:
            taken += len(nodes)
        else:
            left.update(node.op_type for node in nodes)
    total = taken + sum(left.values())
    return Placement(
        provider=provider,
        taken=taken,
        total=total,
        left=dict(sorted(left.items())),
        verified=total > 0,
    )

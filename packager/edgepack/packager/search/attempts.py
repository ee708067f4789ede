"""Record of a search: tried candidates, and nodes that cost accuracy.

Both are in reports too: new fields are only ever added, each with a default.
"""

import msgspec


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """Attempt of a search, for the report.

    Attributes:
        what: The settings in words, e.g. "a8w8 per-channel, MinMax, 4 float nodes".
        accuracy: Value of the gate's metric on the search samples.
        size_bytes: Size of the candidate.
        because: Reason for the attempt, or for its rejection.
        float_nodes: How many nodes stayed float that could have been lowered; None where nodes are
            not counted.
        high_precision_nodes: How many got more bits so as not to stay float; None where a node that
            costs too much stays float.
        is_best: Whether the attempt went on to the gates.
        metric: Metric of the value: the metric, output or channels with the least margin in this
            candidate, maybe other than the published candidate's; "" in older reports.
        budget: The least value that passes; None in older reports.
        latency_ms: Median on the build host, milliseconds; None if not measured. Never part of the
            bundle's bytes.
    """

    what: str
    accuracy: float
    size_bytes: int
    because: str
    float_nodes: int | None = None
    high_precision_nodes: int | None = None
    is_best: bool = False
    metric: str = ""
    budget: float | None = None
    latency_ms: float | None = None


class SensitiveNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node that costs accuracy.

    Attributes:
        name: The node.
        noise: Effect of lowering the node alone on the outputs: root-mean-square error over
            root-mean-square, mean over the outputs.
    """

    name: str
    noise: float

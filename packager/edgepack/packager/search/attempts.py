"""Record of a search: tried candidates, and nodes that cost accuracy.

Both stand in reports too: fields are only ever added to them, each with a default.
"""

import msgspec


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """Attempt of a search, for the report.

    Attributes:
        what: The settings in words, e.g. "a8w8 per-channel, MinMax, 4 float nodes".
        accuracy: Value of the gate's metric on the search samples.
        size_bytes: Size of the candidate.
        because: Why it was tried, or why it was left.
        float_nodes: How many nodes stayed float that could have been lowered; None where nodes are
            not counted.
        high_precision_nodes: How many got more bits so as not to stay float; None where a node that
            costs too much stays float.
        is_best: Whether it is the one that went on to the gates.
        metric: What that value is of: the metric, output or channels that had the least to spare in
            this candidate, which may be another's than of the published one; "" in older reports.
        budget: The least value of it that passes; None in older reports.
        latency_ms: Median on the build host, milliseconds; None where it was not measured. Never
            part of the bundle's bytes.
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
        noise: What lowering it alone does to the outputs: root-mean-square error over
            root-mean-square, mean over the outputs.
    """

    name: str
    noise: float

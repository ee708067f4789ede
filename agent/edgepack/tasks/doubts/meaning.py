"""Doubts of what outputs mean, and of samples that do not tell."""

import numpy as np

from edgepack.tasks.description import GUESSED_FROM
from edgepack.tasks.doubts.case import Case

GRAPH_LAYOUT = "graph_layout"
"""Setting of outputs that are declared otherwise, and the graph gives boxes there: their layout."""

UNKNOWN_LAYOUT = "unknown"
"""Value of this setting where no known layout fits."""

MAY_BE = "may_be"
"""Setting of outputs that the graph or the values show to be perhaps of another task."""

QUANTITIES = "quantities"
"""Value of this setting of a short row that was taken for scores by its values alone."""

MIXTURE = "mixture"
"""Value of this setting of declared values that a Softmax gives in part."""

BOXES = "boxes"
"""Value of this setting of declared values that hold boxes beside scores."""


def find_constant(case: Case) -> str:
    """Return a doubt where no output differs between samples."""
    first = case.expected[0]
    for name in case.part.outputs:
        for outputs in case.expected:
            is_float = first[name].dtype.kind == "f"
            if not np.array_equal(outputs[name], first[name], equal_nan=is_float):
                return ""
    return (
        f"the float model's {case.are} the same in all {len(case.expected)} samples: every variant "
        "that returns a constant agrees"
    )


def find_residuals(case: Case) -> str:
    """Return the doubt of outputs that reconstruct an input."""
    name = next(iter(case.part.settings["residuals"]))
    return (
        f"output '{name}' reconstructs an input: if its error tells anomalies, samples without "
        "anomalies say little of them"
    )


def find_unknown(case: Case) -> str:
    """Return the doubt of outputs without a task."""
    return f"nothing tells what {case.listed} mean{'s' * (len(case.part.outputs) == 1)}"


def find_layout(case: Case) -> str:
    """Return the doubt of outputs that are declared otherwise, where the graph gives boxes."""
    if (layout := case.part.settings[GRAPH_LAYOUT]) == UNKNOWN_LAYOUT:
        return f"{case.declared}, but shaped like a detector's boxes in a layout that is not known"
    return (
        f"{case.declared}, and the graph gives boxes there (layout {layout!r}): leave the "
        "declaration out"
    )


def find_boxes(case: Case) -> str:
    """Return the doubt of declared values that hold boxes."""
    return (
        f"{case.declared}, but each place holds four numbers beside scores, as a detector's do: "
        "boxes may move"
    )


def find_mixture(case: Case) -> str:
    """Return the doubt of declared values with a Softmax."""
    return (
        f"{case.declared}, and a Softmax gives a part of the values, as in a mixture of "
        "distributions: its likelihood may lose more"
    )


def find_quantities(case: Case) -> str:
    """Return the doubt of short rows that were taken for scores."""
    return (
        f"only values tell that {case.are} scores of classes, and so few numbers may be quantities "
        "side by side"
    )


def find_guess(case: Case) -> str:
    """Return the doubt of a task that few samples show."""
    return f"{case.are} taken for {case.part.task} by {case.part.settings[GUESSED_FROM]} samples"

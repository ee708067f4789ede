"""Kinds of tasks, by name."""

from benchmarks.task_kinds.developed import DEVELOPED
from benchmarks.task_kinds.examples import EXAMPLES
from benchmarks.task_kinds.independent import INDEPENDENT
from benchmarks.task_kinds.kind import Kind

KINDS = {
    **{
        name: Kind(name=name, half="developed", make=make)
        for name, make in (EXAMPLES | DEVELOPED).items()
    },
    **{name: Kind(name=name, half="independent", make=make) for name, make in INDEPENDENT.items()},
}
"""In the table's order."""

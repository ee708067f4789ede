"""Pass `apply_workarounds`: replace operators that a provider computes wrongly.

`workarounds.table` lists the operators, the errors, and the releases with these errors.
"""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import onnx

from edgepack.packager.graph.model_files import opsets_of
from edgepack.packager.graph.node_chains import replace
from edgepack.packager.graph.queries import index_graph, is_standard
from edgepack.packager.passes.context import PassContext, PassResult
from edgepack.packager.passes.workarounds.site import Site
from edgepack.packager.passes.workarounds.table import WORKAROUNDS, Seen, Workaround
from edgepack.packager.profiles.pass_settings import ApplyWorkarounds


def apply_workarounds(
    model: onnx.ModelProto, settings: ApplyWorkarounds, context: PassContext
) -> PassResult:
    """Replace operators by equivalent others.

    Args:
        model: The model, with shapes; changed in place.
        settings: The operators, and whether workarounds also apply to chips.
        context: The provider, the release of its simulator, and a folder for models of a single
            node.

    Returns:
        The model, and how many nodes were replaced.

    Raises:
        BuildError: The type of a node's input is not known.
    """
    folder = context.work_dir / "apply_workarounds"
    counts: Counter[str] = Counter()
    for op in settings.ops:
        for row in WORKAROUNDS:
            if row.op == op and _applies(row.seen, settings, context):
                counts[row.note] += _apply(model.graph, row, opsets_of(model), folder)
    notes = tuple(f"{count} {note}" for note, count in counts.items() if count)
    return PassResult(model=model, notes=notes)


def _applies(seen: Seen, settings: ApplyWorkarounds, context: PassContext) -> bool:
    """Return True if the simulator's release has the defect, or the profile assumes the defect on
    chips.
    """
    has_defect = settings.on_chips or context.simulator_version in seen.releases
    return seen.provider == context.provider and has_defect


def _apply(graph: onnx.GraphProto, row: Workaround, opsets: Mapping[str, int], folder: Path) -> int:
    """Replace the nodes that a row is about; return how many."""
    index = index_graph(graph)
    sites = [
        Site(node=node, index=index, opsets=opsets, folder=folder)
        for node in graph.node
        if node.op_type == (row.replaces or row.op) and is_standard(node)
    ]
    for site in sites:
        row.rewrite(site)
    replaced = {site.node.name for site in sites if site.made}
    replace(graph, replaced, [(site.node.name, made) for site in sites for made in site.made])
    return len(replaced)

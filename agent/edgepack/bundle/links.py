"""Files of a bundle that are stored once: of a pipeline, those with the content of another one."""

from edgepack.bundle.manifest import Manifest
from edgepack.bundle.paths import sort_key


def find_links(manifest: Manifest) -> dict[str, str]:
    """Return the files of a pipeline that an earlier file has the content of, with that file.

    Equal files of other models stay apart: where one is damaged, another variant serves.
    """
    if manifest.facts.pipeline is None:
        return {}
    entries = {file.path: file for graph in manifest.graphs for file in graph.facts.files}
    firsts: dict[tuple[str, int], str] = {}
    links: dict[str, str] = {}
    for path in sorted(entries, key=sort_key):
        first = firsts.setdefault((entries[path].sha256, entries[path].size_bytes), path)
        if first != path:
            links[path] = first
    return links

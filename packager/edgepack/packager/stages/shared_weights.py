"""Weights that several graphs of a pipeline have, stored once.

Such weights go to a file of their own, with the same content in the folder of each graph:
ONNX Runtime opens no external data above the folder of a model. Files with the same content are
stored once: in a bundle's folder and in a slot by a hard link, in an archive by an entry that names
the first file. A device fetches their chunks once.
"""

import hashlib
import mmap
import shutil
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import onnx
from msgspec.structs import replace
from onnx import helper, numpy_helper

from edgepack.agent.runtime.provider_table import CPU_PROVIDER
from edgepack.bundle.manifest import Variant
from edgepack.durable import write_file
from edgepack.packager.bundling.assemble import list_entries
from edgepack.packager.graph import stored_tensors
from edgepack.packager.graph.model_files import link, load_model, save_model
from edgepack.packager.graph.queries import all_nodes

_LEAST_BYTES = 1024
"""Smaller weights stay in their graph: the reference to a file takes about 100 bytes."""

_PAGE_FROM_BYTES = 64 * 1024
"""Larger weights start at a page, so that ONNX Runtime maps the weights into memory."""


def share_weights(folder: Path, graphs: Sequence[Variant]) -> tuple[Variant, ...]:
    """Move weights that several graphs have to common files, and link equal files.

    Args:
        folder: The bundle's folder.
        graphs: The graphs, each in a folder of its own.

    Returns:
        The graphs with their files as they are now.
    """
    models = {
        graph.folder: load_model(folder / graph.folder / graph.model_file)
        for graph in graphs
        if graph.model_file.endswith(".onnx")
    }
    tied = {
        graph.folder
        for graph in graphs
        if graph.provider == CPU_PROVIDER and graph.folder in models
        if _tie_transposed(models[graph.folder])
    }
    holders = defaultdict[bytes, dict[str, None]](dict)
    for place, model in models.items():
        for tensor in model.graph.initializer:
            if _is_movable(tensor):
                holders[_digest(tensor)][place] = None
    groups = defaultdict[tuple[str, ...], set[bytes]](set)
    for digest, found in holders.items():
        if len(found) > 1:
            groups[tuple(found)].add(digest)
    for places, digests in groups.items():
        _write_shared(folder, places, digests, models)
    changed = tied | {place for places in groups for place in places}
    for graph in graphs:
        if graph.folder in changed:
            _save(folder / graph.folder / graph.model_file, models[graph.folder])
    shared = tuple(_with_files(folder, g) if g.folder in changed else g for g in graphs)
    _link_equal(folder, shared)
    return shared


def _tie_transposed(model: onnx.ModelProto) -> bool:
    """Replace matrices that are the transpose of another weight by a node, in place.

    An exported head is a copy of its tied embedding, the other way round. ONNX Runtime computes the
    node once, at the start.

    Returns:
        True if a matrix was replaced.
    """
    graph = model.graph
    known = {_digest(tensor): tensor.name for tensor in graph.initializer if _is_movable(tensor)}
    taken = {one.name for one in (*graph.input, *graph.output)}
    for node in all_nodes(graph):
        taken |= set(node.input) - set(node.input[1:] if node.op_type == "MatMul" else ())
    found = {}
    for tensor in graph.initializer:
        if len(tensor.dims) == 2 and _is_movable(tensor) and tensor.name not in taken:
            turned = numpy_helper.from_array(stored_tensors.values(tensor).T.copy())
            source = known.get(_digest(turned))
            if source not in (None, tensor.name) and source not in found:
                found[tensor.name] = source
    for tensor in [one for one in graph.initializer if one.name in found]:
        graph.initializer.remove(tensor)
    for name, source in found.items():
        node = helper.make_node("Transpose", [source], [name], f"{name}/tied", perm=[1, 0])
        graph.node.insert(0, node)
    return bool(found)


def _digest(tensor: onnx.TensorProto) -> bytes:
    digest = hashlib.sha256(f"{tensor.data_type} {list(tensor.dims)} ".encode())
    for piece in stored_tensors.pieces(tensor):
        digest.update(piece)
    return digest.digest()


def _write_shared(
    folder: Path, places: Sequence[str], digests: set[bytes], models: dict[str, onnx.ModelProto]
) -> None:
    """Write weights to a file of each folder, and make the tensors refer to the file."""
    name = f"shared-{hashlib.sha256(b''.join(sorted(digests))).hexdigest()[:8]}.data"
    first = folder / places[0] / name
    offsets: dict[bytes, tuple[int, int]] = {}
    with first.open("xb") as file:
        for tensor in models[places[0]].graph.initializer:
            if not _is_movable(tensor):
                continue
            digest = _digest(tensor)
            if digest not in digests or digest in offsets:
                continue
            if stored_tensors.size_bytes(tensor) >= _PAGE_FROM_BYTES:
                file.write(bytes(-file.tell() % mmap.PAGESIZE))
            start = file.tell()
            for piece in stored_tensors.pieces(tensor):
                file.write(piece)
            offsets[digest] = (start, file.tell() - start)
    for place in places:
        if place != places[0] and not link(first, folder / place / name):
            shutil.copyfile(first, folder / place / name)
        for tensor in models[place].graph.initializer:
            if _is_movable(tensor) and (found := offsets.get(_digest(tensor))) is not None:
                stored_tensors.put(tensor, name, *found)


def _is_movable(tensor: onnx.TensorProto) -> bool:
    """Return True if a tensor is worth a reference, and its bytes can be moved unchanged."""
    if _is_relative(tensor):
        return False
    is_raw = tensor.HasField("raw_data") or stored_tensors.is_held(tensor)
    return is_raw and stored_tensors.size_bytes(tensor) >= _LEAST_BYTES


def _is_relative(tensor: onnx.TensorProto) -> bool:
    """Return True if a tensor refers to a common file already."""
    return stored_tensors.is_external(tensor) and not stored_tensors.is_held(tensor)


def _save(path: Path, model: onnx.ModelProto) -> None:
    """Write a model, whose own weights stay where they belong by their size."""
    shared = [tensor for tensor in model.graph.initializer if _is_relative(tensor)]
    own = [tensor for tensor in model.graph.initializer if not _is_relative(tensor)]
    del model.graph.initializer[:]
    model.graph.initializer.extend(own)
    save_model(model, path)
    written = onnx.load(path, load_external_data=False)
    written.graph.initializer.extend(shared)
    write_file(path, written.SerializeToString(deterministic=True), lasting=False)


def _with_files(folder: Path, graph: Variant) -> Variant:
    return replace(graph, facts=replace(graph.facts, files=list_entries(folder, graph.folder)))


def _link_equal(folder: Path, graphs: Sequence[Variant]) -> None:
    """Link files with the same content."""
    firsts: dict[str, Path] = {}
    for graph in graphs:
        for file in graph.facts.files:
            first = firsts.setdefault(file.sha256, folder / file.path)
            if first != folder / file.path:
                link(first, folder / file.path)

"""Soundness of a parsed model: its graph, and the values of its weights."""

from pathlib import Path

import numpy as np
import onnx

from edgepack.agent.runtime.opening import FATAL_ONLY, open_model_file
from edgepack.errors import BuildError, DeviceError
from edgepack.packager.graph import stored_tensors
from edgepack.packager.graph.float_types import FLOAT_TYPES
from edgepack.packager.graph.masks import find_masks
from edgepack.packager.graph.operators import facts
from edgepack.packager.graph.queries import all_nodes

_MOST_CHARACTERS = 400


def check_graph(path: Path) -> tuple[str, ...]:
    """Ask the ONNX checker, which is stricter than ONNX Runtime, and then ONNX Runtime itself.

    Args:
        path: The model's file.

    Returns:
        A note on objections of the checker alone (an output without a shape, say).

    Raises:
        BuildError: Both reject the model.
    """
    try:
        onnx.checker.check_model(str(path))
    except onnx.checker.ValidationError as error:
        objection = _objection(str(error))
        try:
            open_model_file(path, log_severity=FATAL_ONLY).close()
        except DeviceError as refusal:
            raise BuildError(
                f"the ONNX checker refuses the model: {objection}",
                found_in=str(path),
                remedy="export it again, or repair the node that the message names",
            ) from refusal
        return (f"The ONNX checker objects, ONNX Runtime loads it: {objection.rstrip('.')}.",)
    return ()


def check_weights(path: Path, model: onnx.ModelProto) -> tuple[str, ...]:
    """Reject NaN anywhere, infinities that something is computed with, and misshapen tensors.

    A table that masks scores may hold infinities: see `find_masks`.

    Args:
        path: The model's file, for messages.
        model: The model.

    Returns:
        A note on each other constant that holds infinities.

    Raises:
        BuildError: A weight holds such values.
    """
    nodes = list(all_nodes(model.graph))
    computed_with = {name for node in nodes if facts(node.op_type).weights for name in node.input}
    masks: frozenset[str] | None = None
    notes = []
    for name, tensor in stored_tensors.named_tensors(model):
        _check_size(path, name, tensor)
        if tensor.data_type not in FLOAT_TYPES:
            continue
        values = stored_tensors.values(tensor)
        finite = np.isfinite(values)
        if finite.all():
            continue
        nan_count = int(np.isnan(values).sum())
        masks = find_masks(nodes) if masks is None else masks
        if nan_count or (name in computed_with and name not in masks):
            what = "NaN" if nan_count else "infinite"
            count = nan_count or int(values.size - finite.sum())
            raise BuildError(
                f"{count:,} of {values.size:,} values of weight {name!r} are {what}",
                found_in=f"{path}, initializer {name!r}",
                remedy="the training diverged or the export is damaged: "
                "export from a good checkpoint",
            )
        what = "they mask what a Softmax reads" if name in masks else "no weight of a layer does"
        notes.append(f"Constant {name!r} holds infinite values; {what}.")
    return tuple(notes)


def _objection(words: str) -> str:
    """Return the checker's message in a line; a node follows a first line with a colon."""
    lines = [line.strip() for line in words.splitlines() if line.strip()] or ["no reason given"]
    count = 3 if lines[0].endswith(":") else 1
    return " ".join(lines[:count])[:_MOST_CHARACTERS]


def _check_size(path: Path, name: str, tensor: onnx.TensorProto) -> None:
    """Reject a tensor that holds more or fewer bytes than its type and shape have.

    Neither ONNX's checker nor ONNX Runtime minds bytes that are left over.
    """
    needed = stored_tensors.shaped_bytes(tensor)
    if not tensor.raw_data or needed in (None, len(tensor.raw_data)):
        return
    raise BuildError(
        f"tensor {name!r} holds {len(tensor.raw_data):,} bytes, and one of shape "
        f"{list(tensor.dims)} has {needed:,}",
        found_in=f"{path}, initializer {name!r}",
        remedy="export the model again",
    )

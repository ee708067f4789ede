"""Soundness of a parsed model: its graph, and the values of its weights.

Nodes in training mode: such an export is not the intended model.

Operators beyond ONNX's own: use in a model, and support by ONNX Runtime.

Opset and IR versions that the installed ONNX Runtime loads.

Tensors that only mask the scores of a Softmax.

Minus infinity in such a tensor is not damage: the exponential is zero, and every output is finite.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import chain, count
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import defs
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidGraph, InvalidProtobuf

from edgepack.agent.runtime.opening import FATAL_ONLY, open_model_file
from edgepack.errors import BuildError, DeviceError
from edgepack.packager.graph import stored_tensors
from edgepack.packager.graph.edits import MICROSOFT, import_domain
from edgepack.packager.graph.float_types import FLOAT_TYPES
from edgepack.packager.graph.model_files import cpu_session, opset_of, quiet_options
from edgepack.packager.graph.operators import facts
from edgepack.packager.graph.queries import all_nodes, attribute, is_standard
from edgepack.packager.graph.runtime_operators import is_runtime_operator

_MOST_CHARACTERS = 400
_UNKNOWN_OPERATOR = "No Op registered"


def check_graph(path: Path) -> tuple[str, ...]:
    """Ask the ONNX checker, which is stricter than ONNX Runtime, and then ONNX Runtime itself.

    The checker does not see operators that ONNX Runtime alone defines in the standard domain.

    Args:
        path: The model's file.

    Returns:
        A note on objections of the checker alone (an output without a shape, say).

    Raises:
        BuildError: Both reject the model.
    """
    try:
        _check(path)
    except onnx.checker.ValidationError as error:
        objection = _objection(str(error))
        try:
            open_model_file(path, log_severity=FATAL_ONLY).close()
        except DeviceError as refusal:
            raise BuildError(
                f"the ONNX checker refuses the model: {objection}",
                remedy="export it again, or repair the node that the message names",
            ) from refusal
        return (f"The ONNX checker objects, ONNX Runtime loads it: {objection.rstrip('.')}.",)
    return ()


def _check(path: Path) -> None:
    """Run the ONNX checker; again without ONNX Runtime's own operators, if these stopped it."""
    try:
        onnx.checker.check_model(str(path))
    except onnx.checker.ValidationError as error:
        if _UNKNOWN_OPERATOR not in str(error):
            raise
        model = onnx.load(path, load_external_data=False)
        opset = opset_of(model)
        own = [
            node
            for node in all_nodes(model.graph)
            if is_standard(node) and is_runtime_operator(node, opset)
        ]
        if not own:
            raise
        for node in own:
            node.domain = MICROSOFT
        import_domain(model, MICROSOFT)
        _take_weights_as_inputs(model.graph)
        onnx.checker.check_model(model)


def _take_weights_as_inputs(graph: onnx.GraphProto) -> None:
    """Replace weights in other files by inputs: the checker finds no files of a model in memory."""
    given = {value.name for value in graph.input}
    outside = [tensor for tensor in graph.initializer if stored_tensors.is_external(tensor)]
    for tensor in outside:
        if tensor.name not in given:
            graph.input.append(
                onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
            )
        graph.initializer.remove(tensor)


def check_weights(model: onnx.ModelProto) -> tuple[str, ...]:
    """Reject NaN anywhere, infinities that something is computed with, and misshapen tensors.

    A table that masks scores may hold infinities: see `find_masks`.

    Args:
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
        _check_size(name, tensor)
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
                found_in=f"initializer {name!r}",
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


def _check_size(name: str, tensor: onnx.TensorProto) -> None:
    """Reject a tensor that holds more or fewer bytes than its type and shape have.

    Neither ONNX's checker nor ONNX Runtime minds bytes that are left over.
    """
    needed = stored_tensors.shaped_bytes(tensor)
    if not tensor.raw_data or needed in (None, len(tensor.raw_data)):
        return
    raise BuildError(
        f"tensor {name!r} holds {len(tensor.raw_data):,} bytes, and one of shape "
        f"{list(tensor.dims)} has {needed:,}",
        found_in=f"initializer {name!r}",
        remedy="export the model again",
    )


def check_inference_form(model: onnx.ModelProto) -> None:
    """Reject batch normalization in training mode.

    In training mode the node normalizes by the mean and variance of its input, a single sample on a
    device, and not by the learned values. ONNX Runtime computes that without a word.

    Args:
        model: The model.

    Raises:
        BuildError: The model has such a node; the message names the first.
    """
    nodes = chain.from_iterable(map(all_nodes, (model.graph, *model.functions)))
    found = [node for node in nodes if node.op_type == "BatchNormalization"]
    training = [node for node in found if _trains(node)]
    if not training:
        return
    first = training[0].name or training[0].output[0]
    raise BuildError(
        f"{len(training)} of the model's {len(found)} BatchNormalization nodes "
        f"{'is' if len(training) == 1 else 'are'} in training mode: each normalizes by the mean "
        "and variance of its input, not by the learned values",
        found_in=f"node {first!r}",
        remedy="export it for inference: model.eval() before torch.onnx.export, without training=",
    )


def _trains(node: onnx.NodeProto) -> bool:
    """Return True if a node trains; below opset 14 the further outputs, running mean and variance,
    show training.
    """
    return bool(attribute(node, "training_mode", 0)) or any(node.output[1:])


_BROUGHT = frozenset({"", "ai.onnx", "ai.onnx.ml", "com.microsoft"})
"""Domains whose operators ONNX Runtime has on a CPU. Whether another provider takes a node of
com.microsoft is told by its placement."""

_SHOWN = 3


def check_operators(model: onnx.ModelProto) -> None:
    """Reject operators that need a library of their own.

    Args:
        model: The model; its own functions are not foreign operators.

    Raises:
        BuildError: The model has foreign operators; the message names the first. Or a function of
            the model's own has the name of a standard operator.
    """
    _check_functions(model)
    own = {(function.domain, function.name) for function in model.functions}
    found = [
        node
        for node in _nodes(model)
        if node.domain not in _BROUGHT and (node.domain, node.op_type) not in own
    ]
    if not found:
        return
    kinds = sorted({f"{node.domain}.{node.op_type}" for node in found})
    nodes = ", ".join(repr(node.name or node.output[0]) for node in found[:_SHOWN])
    raise BuildError(
        f"the model uses operators that ONNX Runtime does not have: {', '.join(kinds)} "
        f"(node {nodes})",
        remedy="export it with standard operators, or define them as functions in the model: "
        "a device has no library for others",
    )


def _check_functions(model: onnx.ModelProto) -> None:
    """Reject a function that hides an operator of ONNX Runtime: ONNX means the function."""
    taken = [
        function.name
        for function in model.functions
        if defs.has(function.name, "" if function.domain == "ai.onnx" else function.domain)
    ]
    if taken:
        raise BuildError(
            f"the model defines a function {taken[0]!r}, which is a standard operator's name: "
            "ONNX Runtime computes the operator and never the function",
            found_in=f"function {taken[0]!r}",
            remedy="give the function a domain of its own (such as 'local') and its nodes too, or "
            "remove it where the operator is meant",
        )


def _nodes(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [*all_nodes(model.graph), *(node for f in model.functions for node in f.node)]


OLDEST_OPSET = 7
"""The oldest that ONNX Runtime computes as the standard says; the pass `clean` raises it."""

OLDEST_IR_VERSION = 3
"""What ONNX Runtime's own reader accepts at least."""

_PROBE_OPSET = 11
_PROBE_IR_VERSION = 7


def check_versions(model: onnx.ModelProto) -> int:
    """Reject a model of versions that are too old, or too new for the installed ONNX Runtime.

    Args:
        model: The model.

    Returns:
        Its version of the default operator set.

    Raises:
        BuildError: With the versions that will do.
    """
    runtime = f"the installed onnxruntime {onnxruntime.__version__} knows up to"
    imported = (entry.version for entry in model.opset_import if is_standard(entry))
    opset, ir_version = int(next(imported, 0)), int(model.ir_version)
    if opset == 0:
        raise BuildError("the model imports no default operator set")
    if opset < OLDEST_OPSET:
        raise BuildError(
            f"opset {opset} is too old: the oldest that can be built from is {OLDEST_OPSET}",
            remedy="export again with opset 17, or onnx.version_converter.convert_version(model, "
            "17)",
        )
    if not loads(opset):
        newest = _newest(_PROBE_OPSET, loads)
        raise BuildError(
            f"opset {opset} is too new: {runtime} opset {newest}",
            remedy=f"export again with opset {min(newest, 17)} … {newest}, or install a newer "
            "onnxruntime",
        )
    if ir_version < OLDEST_IR_VERSION:
        raise BuildError(
            f"IR version {ir_version} is too old: {OLDEST_IR_VERSION} is the oldest",
            remedy="export the model again with a current exporter",
        )
    if not loads(ir_version=ir_version):
        newest = _newest(_PROBE_IR_VERSION, lambda version: loads(ir_version=version))
        raise BuildError(
            f"IR version {ir_version} is too new: {runtime} IR version {newest}",
            remedy=f"set model.ir_version = {newest} and save it again where the model uses "
            "nothing newer, or install a newer onnxruntime",
        )
    return opset


@cache
def loads(opset: int = _PROBE_OPSET, ir_version: int = _PROBE_IR_VERSION) -> bool:
    """Return True if the installed ONNX Runtime loads a model of these versions.

    The function loads a model with a single node: ONNX Runtime publishes its limits nowhere else.
    """
    value = partial(onnx.helper.make_tensor_value_info, elem_type=onnx.TensorProto.FLOAT, shape=[1])
    node = onnx.helper.make_node("Identity", ["x"], ["y"])
    graph = onnx.helper.make_graph([node], "probe", [value("x")], [value("y")])
    model = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=ir_version
    )
    try:
        cpu_session(model.SerializeToString(), quiet_options())
    except (Fail, InvalidGraph, InvalidProtobuf):
        return False
    return True


def _newest(start: int, is_known: Callable[[int], bool]) -> int:
    """Return the newest known version, from a known version on."""
    return next(version for version in count(start) if not is_known(version + 1))


_ENDS = frozenset({"Softmax", "Exp", "Attention", "MultiHeadAttention", "GroupQueryAttention"})
"""Whose exponential makes a zero of minus infinity."""

_LETS_THROUGH = frozenset({"Where", "Cast", "CastLike", "ScatterND", "Trilu"})
"""Beside what only moves values or computes each by itself."""


def find_masks(nodes: Sequence[onnx.NodeProto]) -> frozenset[str]:
    """Return the names of the tensors of which every reader leads to a Softmax, and adds or moves
    until then.

    Args:
        nodes: Nodes of a graph and of its bodies, each graph's in order.
    """
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in nodes:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    masks: set[str] = set()
    for name in reversed(readers):
        leads = [
            node.op_type in _ENDS or (_lets_through(node) and masks.issuperset(node.output))
            for node in readers[name]
        ]
        if all(leads):
            masks.add(name)
    return frozenset(masks)


def _lets_through(node: onnx.NodeProto) -> bool:
    known = facts(node.op_type)
    return (
        known.one_scale
        or known.by_value
        or bool(known.moves_integers)
        or node.op_type in _LETS_THROUGH
    )

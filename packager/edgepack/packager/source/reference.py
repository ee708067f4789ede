"""The source model as everything is compared with it: the float model, as it was given.

Only its nodes get names, since ONNX Runtime refuses equal ones, which exporters do write. A model
that comes quantized is computed as its Quantize/DequantizeLinear pairs stand: integer kernels may
saturate, and what they give then is not what the model means.

The choice of golden samples, the search and the verdict of every profile ask for the outputs of the
same samples: what was given once is remembered.
"""

import re
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path

import onnx

from edgepack.agent.runtime.opening import FATAL_ONLY, open_model_file
from edgepack.agent.runtime.runtime_words import first_line
from edgepack.errors import BuildError
from edgepack.packager.graph.control_flow import deciding_inputs
from edgepack.packager.graph.edits import name_nodes
from edgepack.packager.graph.model_files import RUNTIME_ERRORS
from edgepack.packager.graph.source_quantization import read_source_quantization
from edgepack.packager.runtime.model_run import ModelRunner, Run
from edgepack.packager.source.model import SourceModel
from edgepack.packager.tensors.sequence import Feeds, digest_of
from edgepack.tasks.arrays import Outputs

_RUN_ERRORS: tuple[type[Exception], ...] = (ValueError, *RUNTIME_ERRORS)

_REMEMBERED_BYTES = 32_000_000
"""What is remembered of outputs: all of a hundred samples of most models."""


class FloatSource:
    """Runs the source model; of a sample that it ran before, it gives the same outputs at once.

    Args:
        source: The model; it is loaded when the first unknown sample comes.
        path: Where it is written to; the folder must exist.
    """

    def __init__(self, source: SourceModel, path: Path) -> None:
        self._source = source
        self._path = path
        self._run: Run | None = None
        self._remembered: dict[bytes, Outputs] = {}
        self._room_bytes = _REMEMBERED_BYTES

    def __call__(self, feeds: Feeds) -> Outputs:
        """Return one inference.

        Raises:
            BuildError: See `open_reference`.
        """
        digest = digest_of(feeds)
        known = self._remembered.get(digest)
        if known is None:
            if self._run is None:
                self._run = open_reference(self._source, self._path)
            known = self._run(feeds)
            self._remember(digest, known)
        return dict(known)

    def remember(self, feeds: Feeds, outputs: Outputs) -> None:
        """Take what another session of the same model gave, as long as there is room."""
        self._remember(digest_of(feeds), outputs)

    def _remember(self, digest: bytes, outputs: Outputs) -> None:
        size = sum(value.nbytes for value in outputs.values())
        if digest in self._remembered or size > self._room_bytes:
            return
        for value in outputs.values():
            value.setflags(write=False)  # whoever asks next gets the same array
        self._remembered[digest] = outputs
        self._room_bytes -= size


def open_as_given(source: SourceModel) -> Run:
    """Return the model as its file has it, with one thread; inputs that are fixed get their
    values.
    """
    session = open_model_file(source.path, threads=1, log_severity=FATAL_ONLY)
    constants = {entry.name: entry.value for entry in source.fixed}
    return lambda feeds: session.run({**feeds, **constants})


def open_reference(source: SourceModel, path: Path, *, threads: int = 0) -> Run:
    """Open the source model on the CPU.

    Args:
        source: The model.
        path: Where it is written to; the folder must exist.
        threads: Intra-op threads; 0 leaves it to ONNX Runtime.

    Returns:
        A function that runs one inference; it raises a `BuildError` that says what was fed where
        ONNX Runtime cannot run it.

    Raises:
        BuildError: ONNX Runtime cannot load it.
    """
    model = deepcopy(source.model)
    name_nodes(model.graph)
    is_float = read_source_quantization(model.graph) is None
    try:
        run = ModelRunner(model, path, threads=threads, optimize=is_float).run
    except RUNTIME_ERRORS as error:
        raise BuildError(
            f"ONNX Runtime cannot load the model: {first_line(error)}",
            found_in=str(source.path),
            remedy=_remedy(model.graph, str(error)),
        ) from error

    def run_or_tell(feeds: Feeds) -> Outputs:
        try:
            return run(feeds)
        except _RUN_ERRORS as error:
            raise BuildError(
                f"the float model does not run on a sample: {first_line(error)}",
                found_in=f"{source.path}, fed with {'; '.join(_describe(feeds))}",
                remedy="run it in ONNX Runtime on that sample, and export it so that it does, or "
                "remove the sample",
            ) from error

    return run_or_tell


def _describe(feeds: Feeds) -> Iterator[str]:
    for name, array in feeds.items():
        shape = ",".join(map(str, array.shape))
        values = f", {array.min():.6g} … {array.max():.6g}" if array.size else ""
        yield f"{name}: {array.dtype.name}[{shape}]{values}"


def _remedy(graph: onnx.GraphProto, words: str) -> str:
    if re.search("not a registered|Could not find an implementation", words):
        return "export it with operators that ONNX Runtime has"
    deciding = sorted({name for node in graph.node for name in deciding_inputs(graph, node)})
    if not deciding:
        return (
            "export it again, or give other sizes where --shape fixed some: what the message "
            "names does not fit together"
        )
    return (
        f"{' '.join(f'--value {name}=…' for name in deciding)} where a device always feeds the "
        "same, so that one branch of the control flow is left (shapes that were fixed may "
        "contradict the others), or leave the shapes open"
    )

"""The source model as the reference of all comparisons: the float model, unchanged.

Only its nodes get unique names, since ONNX Runtime rejects equal names, which some exporters write.
A quantized source model is computed with its Quantize/DequantizeLinear pairs unchanged: integer
kernels may saturate, and then give other results than the model defines.

The choice of golden samples, the search and the verdict of every profile need the outputs of the
same samples: the outputs are cached.
"""

import re
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx

from edgepack.agent.runtime.opening import FATAL_ONLY, open_model_file
from edgepack.agent.runtime.runtime_words import first_line
from edgepack.errors import BuildError, DeviceError
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
    """Runs the source model; returns cached outputs for known samples.

    Args:
        source: The model; loaded at the first unknown sample.
        path: Target of the model; the folder must exist.
    """

    def __init__(self, source: SourceModel, path: Path) -> None:
        self._source = source
        self._path = path
        self._run: Run | None = None
        self._remembered: dict[bytes, Outputs] = {}
        self._room_bytes = _REMEMBERED_BYTES

    def __call__(self, feeds: Feeds) -> Outputs:
        """Run an inference, or return its cached outputs.

        Raises:
            BuildError: See `open_reference`.
        """
        digest = digest_of(feeds)
        known = self._remembered.get(digest)
        if known is None:
            known = self.run_unknown(feeds)
            self._remember(digest, known)
        return dict(known)

    def run_unknown(self, feeds: Feeds) -> Outputs:
        """Run an inference that nobody asks for again; see `__call__`."""
        if self._run is None:
            self._run = open_reference(self._source, self._path)
        return self._run(feeds)

    def remember(self, feeds: Feeds, outputs: Outputs) -> None:
        """Store outputs of another session of the same model, as long as there is space."""
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
    """Return the unchanged model of the file, on a single thread; feed fixed inputs, too.

    A file that ONNX Runtime rejects is opened like `open_reference`.

    Raises:
        BuildError: See `open_reference`.
    """
    try:
        session = open_model_file(source.path, threads=1, log_severity=FATAL_ONLY)
    except DeviceError:
        with TemporaryDirectory() as folder:
            return open_reference(source, Path(folder, "model.onnx"), threads=1)
    constants = {entry.name: entry.value for entry in source.fixed}
    return lambda feeds: session.run({**feeds, **constants})


def open_reference(source: SourceModel, path: Path, *, threads: int = 0) -> Run:
    """Open the source model on the CPU.

    Args:
        source: The model.
        path: Target of the model; the folder must exist.
        threads: Intra-op threads; 0 leaves the number to ONNX Runtime.

    Returns:
        A function that runs an inference; raises a `BuildError` with the inputs if ONNX Runtime
        cannot run the model.

    Raises:
        BuildError: ONNX Runtime cannot load the model.
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

"""The child that compiles ahead of time, and compares the result: native code may crash.

python -m edgepack.packager.passes.compile_child    (request on stdin, answer on stdout, JSON)
"""

from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
from msgspec.structs import replace

from edgepack.agent.runtime.child import keep_stdout_clean, take_request
from edgepack.agent.runtime.opening import ProviderSettings, open_model_file
from edgepack.agent.runtime.sessions import Session, Tensor
from edgepack.bundle.manifest import Placement
from edgepack.decoding import decode_json
from edgepack.errors import EdgepackError
from edgepack.packager.tensors.exchange import read_tensors

QNN = "QNNExecutionProvider"


class CompileRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Request to the child.

    Attributes:
        step: `compile` the model to `context`, or `compare` the two.
        model, context: Paths of the model and of the context's model file.
        settings: Settings of the sessions.
        inputs: For `compare`: path of an `.npz` with a sample (`tensors.exchange`).
        timeout_s: The parent's limit.
    """

    step: Literal["compile", "compare"]
    model: str
    context: str
    settings: ProviderSettings
    inputs: str = ""
    timeout_s: float


class CompileAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of the child; `problem` is "" after success.

    Attributes:
        placement: Of the session that compiled.
        nrmse: Difference of the outputs of context and model, relative.
        problem: Failure, in words.
    """

    placement: Placement | None = None
    nrmse: float | None = None
    problem: str = ""


def _open(request: CompileRequest, path: str, extra: dict[str, str]) -> Session:
    entries = {**request.settings.session_options, **extra}
    return open_model_file(Path(path), replace(request.settings, session_options=entries))


def _compile_here(request: CompileRequest) -> CompileAnswer:
    """Open a session that writes the context. For the child."""
    entries = {
        "ep.context_enable": "1",
        "ep.context_file_path": request.context,
        "ep.context_embed_mode": "0",
    }
    return CompileAnswer(placement=_open(request, request.model, entries).placement)


def _compare_here(request: CompileRequest) -> CompileAnswer:
    """Run context and model on the same sample. For the child."""
    feeds = read_tensors(Path(request.inputs), 1)[0]
    got = _open(request, request.context, {}).run(feeds)
    want = _open(request, request.model, {}).run(feeds)
    return CompileAnswer(nrmse=max(_nrmse(want[name], got[name]) for name in want))


def _nrmse(want: Tensor, got: Tensor) -> float:
    """Return root-mean-square difference over the root-mean-square of `want`; both have the same
    shape.
    """
    expected = want.astype(np.float64)
    scale = float(np.sqrt(np.mean(expected**2))) or 1.0
    return float(np.sqrt(np.mean((got.astype(np.float64) - expected) ** 2))) / scale


def main() -> None:
    """Read a request, run its step, and answer. For the child."""
    request = decode_json(take_request(), CompileRequest)
    output = keep_stdout_clean(request.timeout_s)
    step = _compile_here if request.step == "compile" else _compare_here
    try:
        answer = step(request)
    except (EdgepackError, ValueError) as error:
        problem = error.problem if isinstance(error, EdgepackError) else str(error)
        answer = CompileAnswer(problem=problem)
    with output:
        output.write(msgspec.json.encode(answer) + b"\n")


if __name__ == "__main__":
    main()

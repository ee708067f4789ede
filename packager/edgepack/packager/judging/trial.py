"""Runs a model once on its provider in a process of its own: a vendor's library may crash or hang.

    python -m edgepack.packager.judging.trial      request (JSON) on stdin, answer (JSON) on stdout

Samples and outputs travel as files beside the model. Here stands only what a device has too: the
child needs no onnx, and starts in half the time without it.
"""

import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np

from edgepack.agent.runtime.child import keep_stdout_clean, run_child, take_request
from edgepack.agent.runtime.sessions import VERBOSE, open_model_file
from edgepack.bundle.manifest import Placement
from edgepack.errors import BuildError, DeviceError
from edgepack.packager.judging.untaken import UntakenNode, explain_left, stderr_in
from edgepack.packager.samples.sequence import Samples, Tensor

_Tensors = dict[str, Tensor]
"""Inputs or outputs of one inference by name."""


class TrialRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to run.

    Attributes:
        model: Path of the model.
        feeds: Path of the samples, an .npz with members `<sample>/<input>`.
        outputs: Path to write the outputs to, in the same form.
        sample_count: How many samples.
        provider, device, provider_options, session_options: See `open_model_file`.
        timeout_s: Time limit, seconds.
    """

    model: str
    feeds: str
    outputs: str
    sample_count: int
    provider: str
    device: str
    provider_options: dict[str, str]
    session_options: dict[str, str]
    timeout_s: float


class TrialAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it: a placement, or why there is none."""

    placement: Placement | None = None
    left: tuple[UntakenNode, ...] = ()
    problem: str = ""
    remedy: str = ""


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """A model that ran on its provider.

    Attributes:
        placement: How many nodes the provider took.
        left: Those that it did not take, with its reasons.
        outputs: Outputs by name, one dict a sample.
    """

    placement: Placement
    left: tuple[UntakenNode, ...] = ()
    outputs: tuple[_Tensors, ...]


def try_model(
    model: Path,
    samples: Samples,
    *,
    provider: str,
    device: str,
    provider_options: Mapping[str, str],
    session_options: Mapping[str, str],
    timeout_s: float,
) -> Trial:
    """Loads and runs a model on a provider in a fresh process.

    Args:
        model: The model file.
        samples: What to run; few, they are written to disk.
        provider, device, provider_options, session_options: See `open_model_file`.
        timeout_s: Time limit of the whole process, seconds.

    Returns:
        Placement and outputs.

    Raises:
        BuildError: The provider refused the model, failed, crashed or hung.
    """
    feeds, outputs = model.with_suffix(".feeds.npz"), model.with_suffix(".outputs.npz")
    _write(feeds, list(samples))
    request = TrialRequest(
        model=str(model),
        feeds=str(feeds),
        outputs=str(outputs),
        sample_count=samples.count,
        provider=provider,
        device=device,
        provider_options=dict(provider_options),
        session_options=dict(session_options),
        timeout_s=timeout_s,
    )
    try:
        ending = run_child(
            [sys.executable, "-m", "edgepack.packager.judging.trial"],
            msgspec.json.encode(request),
            timeout_s=timeout_s,
        )
        if ending.answer is None:
            raise BuildError(
                f"the model does not survive {provider}: {ending.because}",
                found_in=str(model.name),
                remedy="another profile for this device, or a report to the provider's vendor",
            )
        answer = msgspec.json.decode(ending.answer, type=TrialAnswer)
        if answer.placement is None:
            raise BuildError(answer.problem, found_in=model.name, remedy=answer.remedy or None)
        return Trial(
            placement=answer.placement,
            left=answer.left,
            outputs=_read(outputs, samples.count),
        )
    finally:
        for file in (feeds, outputs, model.with_suffix(".log")):
            file.unlink(missing_ok=True)


def main() -> None:
    """The child: runs what it is asked to and answers."""
    request = msgspec.json.decode(take_request(), type=TrialRequest)
    answer_to = keep_stdout_clean(request.timeout_s)
    try:
        log = Path(request.model).with_suffix(".log")
        with stderr_in(log):
            session = open_model_file(
                Path(request.model),
                provider=request.provider,
                device=request.device,
                provider_options=request.provider_options,
                session_options=request.session_options,
                log_severity=VERBOSE,
            )
        left = explain_left(session.left_nodes, log)
        known = {tensor.name for tensor in session.inputs}
        got = [
            session.run({name: value for name, value in feeds.items() if name in known})
            for feeds in _read(Path(request.feeds), request.sample_count)
        ]
        _write(Path(request.outputs), got)
        answer = TrialAnswer(placement=session.placement, left=left)
    except DeviceError as error:
        answer = TrialAnswer(problem=error.problem, remedy=error.remedy or "")
    answer_to.write(msgspec.json.encode(answer))
    answer_to.close()


def _write(path: Path, tensors: list[_Tensors]) -> None:
    members = {f"{i}/{name}": value for i, one in enumerate(tensors) for name, value in one.items()}
    with path.open("wb") as file:
        np.savez(file, **members)  # type: ignore[arg-type]


def _read(path: Path, count: int) -> tuple[_Tensors, ...]:
    samples: list[_Tensors] = [{} for _ in range(count)]
    with np.load(path, allow_pickle=False) as archive:
        for member in archive.files:
            number, _, name = member.partition("/")
            samples[int(number)][name] = archive[member]
    return tuple(samples)


if __name__ == "__main__":
    main()

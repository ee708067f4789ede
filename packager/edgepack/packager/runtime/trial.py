"""Runs a model once on its provider in a process of its own: a vendor's library may crash or hang.

    python -m edgepack.packager.runtime.trial

reads an `Asked` (JSON) per line from stdin and answers with a line on stdout, to the end of its
stdin: first for the trial, then for the rehearsal of the same variant, with the session and outputs
of the trial (`kept_session`). Samples and outputs travel as files. This module uses only packages
of a device: the child needs no onnx, and starts in half the time without it.
"""

import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from pathlib import Path

import msgspec

from edgepack.agent.runtime.child import end_with_parent, redirect_stdout, set_last_limit
from edgepack.agent.runtime.one_cpu import keep_to_one_cpu, providers_of
from edgepack.agent.runtime.opening import VERBOSE, ProviderSettings, open_model_file
from edgepack.agent.runtime.probe import ProbeRequest
from edgepack.agent.runtime.probing import probe_here
from edgepack.agent.runtime.providers import known_provider, load_runtime, plugin_devices
from edgepack.bundle.manifest import Placement
from edgepack.decoding import decode_json
from edgepack.errors import BuildError, DeviceError
from edgepack.packager.runtime.kept_session import (
    KeptSession,
    Opened,
    RememberingSession,
    digests_of,
)
from edgepack.packager.runtime.provider_process import (
    ProviderProcess,
    TrialProcess,
    Waiting,
    in_silence,
)
from edgepack.packager.runtime.race_child import RaceRequest, race_here
from edgepack.packager.runtime.unassigned_nodes import (
    UnassignedNode,
    explain_left,
    read_failure,
    stderr_in,
)
from edgepack.packager.tensors.exchange import Tensors, read_tensors, write_tensors
from edgepack.packager.tensors.sequence import Samples

FEEDS, OUTPUTS, _LOG = "feeds.npz", "outputs.npz", "log.txt"
"""What parent and child exchange."""

_ANSWER_S = 0.5
"""Of the time limit this is left for the answer: outputs are written, and read by the parent."""

MORE_S = 1.0
"""Samples beyond those that must run are begun for this long, seconds of processor time."""


class TrialRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Request to run models.

    Attributes:
        model: Path of the model.
        exchange: Path of the folder with the samples, `feeds.npz`, an .npz with members
            `<sample>/<input>`, where the child puts `outputs.npz`, in the same form, and its log.
        sample_count: How many samples.
        least: Number of samples that run at any speed; others are begun for `MORE_S`.
        settings: Settings of the session.
        timeout_s: Time limit, seconds: of samples that may not end in time only the first runs.
        reuse: Whether the session of the last request may run these samples, if it has the same
            path and settings; its outputs are not remembered.
    """

    model: str
    exchange: str
    sample_count: int
    least: int
    settings: ProviderSettings
    timeout_s: float
    reuse: bool = False


class Asked(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Request of a single line to the child.

    Attributes:
        load: Name of the provider that the trial will ask for: its plug-in is loaded before there
            is a model. This line has no answer; a failure occurs in the trial again, and is
            reported there.
        trial, race, probe: Requests with an answer.
    """

    load: str = ""
    trial: TrialRequest | None = None
    race: RaceRequest | None = None
    probe: ProbeRequest | None = None


class TrialAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of the child: a placement and the number of samples, or the reason for none."""

    placement: Placement | None = None
    ran: int = 0
    left: tuple[UnassignedNode, ...] = ()
    problem: str = ""
    remedy: str = ""


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """A model that ran on its provider.

    Attributes:
        placement: How many nodes the provider took.
        left: Nodes that the provider did not take, with its reasons.
        outputs: Outputs by name, a dict for each sample that ran: the first samples.
    """

    placement: Placement
    left: tuple[UnassignedNode, ...] = ()
    outputs: tuple[Tensors, ...]


def try_model(
    model: Path,
    samples: Samples,
    settings: ProviderSettings,
    *,
    timeout_s: float,
    least: int | None = None,
    process: TrialProcess | None = None,
    variant: str = "",
    command: Sequence[str] | None = None,
    waiting: Waiting = in_silence,
    reuse: bool = False,
) -> Trial:
    """Load and run a model on a provider in a fresh process, which then wait for more.

    Args:
        model: The model file.
        samples: Few samples, which are written to disk.
        settings: Settings of the session.
        timeout_s: Time limit, seconds, of the start of the process too.
        least: Number of samples that run at any speed, within the time limit, others as time
            allows; None for all.
        process: Starts the child, after any former child, and leaves the child running; None ends
            the child here.
        variant: Subject of the process.
        command: The child, if in another environment.
        waiting: Called for every second that there is no answer yet.
        reuse: Whether a process that runs for the variant may use its open session.

    Returns:
        Placement and outputs.

    Raises:
        BuildError: The provider refused the model, failed, crashed or hung.
    """
    with tempfile.TemporaryDirectory(prefix=".trial-", dir=model.parent.parent) as exchange:
        write_tensors(Path(exchange) / FEEDS, list(samples))
        request = TrialRequest(
            model=str(model),
            exchange=exchange,
            sample_count=samples.count,
            least=samples.count if least is None else least,
            settings=settings,
            timeout_s=timeout_s,
            reuse=reuse,
        )
        with nullcontext(process) if process else ProviderProcess() as asked:
            if not (reuse and asked.subject == variant):
                asked.start_anew(variant, command=command)
            ending = asked.ask(
                msgspec.json.encode(Asked(trial=request)), timeout_s=timeout_s, waiting=waiting
            )
        if ending.answer is None:
            raise BuildError(
                f"the model does not survive {settings.provider}: {ending.because}",
                found_in=str(model.name),
                remedy="another profile for this device, or a report to the provider's vendor",
            )
        answer = decode_json(ending.answer, TrialAnswer)
        if answer.placement is None:
            raise BuildError(answer.problem, found_in=model.name, remedy=answer.remedy or None)
        return Trial(
            placement=answer.placement,
            left=answer.left,
            outputs=read_tensors(Path(exchange) / OUTPUTS, answer.ran),
        )


def main() -> None:
    """Answer each line. For the child."""
    end_with_parent()
    answers, kept = redirect_stdout(), KeptSession()
    for line in sys.stdin.buffer:
        asked = decode_json(line, Asked)
        if asked.load:
            _load(asked.load)
            continue
        if asked.trial is not None:
            set_last_limit(asked.trial.timeout_s)
            answers.write(msgspec.json.encode(_try_here(asked.trial, kept)) + b"\n")
        elif asked.race is not None:
            set_last_limit(asked.race.timeout_s)
            answers.write(msgspec.json.encode(race_here(asked.race)) + b"\n")
        elif asked.probe is not None:
            set_last_limit(asked.probe.timeout_s)
            keep_to_one_cpu(*providers_of(asked.probe.variant))
            result = probe_here(asked.probe, kept.open_variant)
            answers.write(msgspec.json.encode(result) + b"\n")
        answers.flush()
        set_last_limit(0)  # until the next line, the end of stdin tells that the parent is gone


def _load(provider: str) -> None:
    keep_to_one_cpu(provider)
    known = known_provider(provider)
    with suppress(DeviceError):
        runtime = load_runtime()
        if known.plugin is not None:
            plugin_devices(runtime, known)


def _try_here(request: TrialRequest, kept: KeptSession) -> TrialAnswer:
    keep_to_one_cpu(request.settings.provider)
    model, exchange = Path(request.model), Path(request.exchange)
    log, end_s = exchange / _LOG, time.monotonic() + request.timeout_s - _ANSWER_S
    opened_before = kept.find(model, request.settings) if request.reuse else None
    try:
        if opened_before is not None:
            samples = read_tensors(exchange / FEEDS, request.sample_count)
            outputs = [opened_before.run(feeds) for feeds in samples]
            write_tensors(exchange / OUTPUTS, outputs)
            return TrialAnswer(placement=opened_before.placement, ran=len(outputs))
        with stderr_in(log):
            opened = open_model_file(model, request.settings, log_severity=VERBOSE)
        if not opened.placement.taken and (failure := read_failure(log)):
            return TrialAnswer(
                problem=f"{request.settings.provider} fails before it takes a node: {failure}",
                remedy="check what the profile's [provider.options] name, and the provider's "
                "installation here",
            )
        left = explain_left(opened.left_nodes, log)
        session = RememberingSession(opened)
        samples = read_tensors(exchange / FEEDS, request.sample_count)
        got = session.run_first(samples, least=request.least, more_s=MORE_S, end_s=end_s)
        write_tensors(exchange / OUTPUTS, got)
    except DeviceError as error:
        return TrialAnswer(problem=error.problem, remedy=error.remedy or "")
    kept.keep(
        Opened(
            path=model,
            digests=digests_of(model.parent),
            settings=request.settings,
            session=session,
        )
    )
    return TrialAnswer(placement=session.placement, ran=len(got), left=left)


if __name__ == "__main__":
    main()

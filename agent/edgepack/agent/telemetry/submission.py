"""Submission: what an application with a runtime of its own reports over the agent's socket.

A submission is one datagram with a JSON object; `docs/reference/application-socket.md` describes
the fields for applications in any language.
"""

from typing import Annotated

import msgspec

from edgepack.agent.state.models import MODEL_NAME
from edgepack.errors import TransferError
from edgepack.versions import Format, NewerVersionError, Version

MAX_BYTES = 16 * 1024
MOST = 1024
"""Latencies, and inferences of each kind, of a submission."""
MAX_LATENCY_MS = 24 * 3600 * 1000.0
MAX_RUNNING_S = 24 * 3600.0
MAX_BEAT_S = 10.0
MAX_TROUBLE = 500

_Count = Annotated[int, msgspec.Meta(ge=0, le=MOST)]
_Digest = Annotated[str, msgspec.Meta(pattern=r"\A([0-9a-f]{64})?\Z")]
_Latency = Annotated[float, msgspec.Meta(ge=0, le=MAX_LATENCY_MS)]


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """Report of a process on a model, since the previous report of the process.

    Attributes:
        model: The model's name.
        digest: The release that runs in the process; "" before the first release is open.
        variant: The variant that runs.
        opening: The release that the process opens now; "" for none.
        latencies_ms: Finished inferences, milliseconds.
        first_tokens_ms: Times to the first token of those that wrote a text, milliseconds; such an
            inference takes the mean time of a further token.
        failures: Inferences that failed.
        not_finite: Finished inferences with NaN or infinity in an output, from finite inputs.
        bad_inputs: The same with NaN or infinity in an input.
        bad_input: Name of the last such input.
        running_s: Seconds since the start of the oldest running inference; None without one.
        every_s: The process promises a report at least so often; 0 promises nothing.
        trouble: Why the process could not open a newer release; "" without a problem.
        lost: Inferences that the process could not report.
        closed: Whether the process closed the model.
    """

    model: Annotated[str, msgspec.Meta(max_length=100)]
    digest: _Digest = ""
    variant: Annotated[str, msgspec.Meta(max_length=100)] = ""
    opening: _Digest = ""
    latencies_ms: Annotated[tuple[_Latency, ...], msgspec.Meta(max_length=MOST)] = ()
    first_tokens_ms: Annotated[tuple[_Latency, ...], msgspec.Meta(max_length=MOST)] = ()
    failures: _Count = 0
    not_finite: _Count = 0
    bad_inputs: _Count = 0
    bad_input: Annotated[str, msgspec.Meta(max_length=100)] = ""
    running_s: Annotated[float, msgspec.Meta(ge=0, le=MAX_RUNNING_S)] | None = None
    every_s: Annotated[float, msgspec.Meta(ge=0, le=MAX_BEAT_S)] = 0.0
    trouble: Annotated[str, msgspec.Meta(max_length=MAX_TROUBLE)] = ""
    lost: Annotated[int, msgspec.Meta(ge=0, le=2**53)] = 0
    closed: bool = False

    @property
    def has_counts(self) -> bool:
        """True if the submission reports inferences."""
        return bool(self.latencies_ms or self.failures)


SUBMISSION = Format("submission", Submission, Version(1, 0))


def read_submission(content: bytes) -> Submission:
    """Read and check a submission of any process of the device.

    Raises:
        TransferError: The submission is malformed, of a newer version, or contradicts itself.
    """
    try:
        said = SUBMISSION.decode(content).value
    except NewerVersionError as error:
        raise TransferError("submission of a newer version") from error
    except ValueError as error:
        raise TransferError(f"malformed submission: {error}") from error
    if not MODEL_NAME.fullmatch(said.model):
        raise TransferError("malformed submission: no model can have that name")
    if said.has_counts and not said.digest:
        raise TransferError("malformed submission: inferences without a release")
    if said.not_finite + said.bad_inputs > len(said.latencies_ms):
        raise TransferError("malformed submission: more inferences are not finite than finished")
    if len(said.first_tokens_ms) > len(said.latencies_ms):
        raise TransferError("malformed submission: more texts than finished inferences")
    return said

"""Orders of the fleet to a device."""

from typing import Annotated, Literal, get_args

import msgspec

from edgepack.wire.messages import (
    Count,
    Message,
    Moment,
    Pem,
    Token,
    Word,
)

MAX_SOAK_S = 30 * 24 * 3600.0
"""No device takes an order to soak for longer."""

MAX_SEQUENCE = 2**53

MAX_STEP = 2**32
"""A sequence is higher than the one before by so much at most: no message, however it came to be
believed, uses up the numbers that those after it need."""

Reason = Literal["drift", "doubt", "shadow"]

CAPTURE_REASONS: tuple[Reason, ...] = get_args(Reason)
"""Reasons for which a device may choose a sample."""

MAX_CAPTURE_SAMPLES = 10_000

MAX_LOG_LINES = 500


class FileRef(msgspec.Struct, frozen=True, kw_only=True):
    """A file to fetch that no signed chunk index covers yet (manifest and signature).

    It travels in chunks of 64 KiB and is checked whole against `sha256`.
    """

    path: str
    size_bytes: int
    sha256: str


class BundleRef(msgspec.Struct, frozen=True, kw_only=True):
    """Names one bundle.

    Attributes:
        name: Model name.
        version: Model version, for people.
        release: Release counter.
        digest: Lower-case hex of the signed root digest: what the bundle *is*; the same for the
            same content with any signer, and the name of its slot on a device.

    Example:
        ```python
        from edgepack.agent import BundleRef, open_model

        def title(bundle: BundleRef) -> str:
            return f"{bundle.name} {bundle.version} ({bundle.digest[:12]})"

        with open_model("defects") as model:
            print(title(model.bundle), "serves")
        ```
    """

    name: str
    version: str
    release: Count
    digest: str


class RunModel(msgspec.Struct, frozen=True, kw_only=True, tag_field="do", tag="run"):
    """Order to run a bundle of a model.

    Attributes:
        sequence: That of the document in which this was said first; of two things said of one model
            the one with the higher sequence is the newer.
        rollout: Id of the rollout that asks, shown in reports.
        bundle: The bundle to run.
        manifest: Its `manifest.json`.
        signature: Its `model.sig`.
        soak_s: How long the new model must serve without trouble before it is committed.
        min_inferences: Real inferences that its soak must see; 0 asks for none. A soak that saw
            fewer continues until it has, or `deadline_s` is over: then the update fails.
        deadline_s: Time that the device has, from when it takes the order; None leaves no longer
            than `soak_s` for that.
        rollback: Whether going back to the release that was committed before is asked for.
        max_slowdown: How many times as long as with the previous release inferences may take; the
            device's own limit applies where it is higher. None switches its check off.
        shadow: Share of inferences in which the new model may answer differently from the model
            that serves, as far as both run side by side before the switch; 1 compares failures and
            latency alone. None switches without a comparison.
        issued_at: When the controller said so.
        expires_at: After this the device must not start it any more; None means never.
    """

    sequence: int
    rollout: str
    bundle: BundleRef
    manifest: FileRef
    signature: FileRef
    soak_s: float = 10.0
    min_inferences: int = 0
    deadline_s: float | None = None
    rollback: bool = False
    max_slowdown: Annotated[float, msgspec.Meta(ge=0, le=1e6)] | None = 1.0
    shadow: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    issued_at: float
    expires_at: float | None = None


class RemoveModel(msgspec.Struct, frozen=True, kw_only=True, tag_field="do", tag="remove"):
    """Order to remove a model. A tombstone.

    Attributes:
        sequence: See `RunModel`.
        rollout: Rollout of the order, shown in reports.
        issued_at: When the controller said so.
    """

    sequence: int
    rollout: str = ""
    issued_at: float


ModelOrder = RunModel | RemoveModel


class CaptureOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Request for inputs of a model; the device's own settings must allow the upload.

    Attributes:
        request: Id of the request.
        samples: Samples of this device, at most.
        of: Reasons for which the device chooses a sample, see `CAPTURE_REASONS`.
        recipient: Public key (PEM) to which the device encrypts each sample.
        collect_s: Seconds during which the device chooses; then the device uploads.
        expires_at: After this time the device sends no sample.
    """

    request: Token
    samples: Annotated[int, msgspec.Meta(ge=1, le=MAX_CAPTURE_SAMPLES)]
    of: Annotated[tuple[Word, ...], msgspec.Meta(min_length=1, max_length=8)]
    recipient: Pem
    collect_s: Annotated[float, msgspec.Meta(ge=0, le=30 * 24 * 3600)]
    expires_at: Moment


class LogOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Request for the last lines of the agent's log; the device's own settings may forbid it.

    Attributes:
        request: Id of the request.
        lines: Lines, at most.
        expires_at: After this time the device sends no line.
    """

    request: Token
    lines: Annotated[int, msgspec.Meta(ge=1, le=MAX_LOG_LINES)]
    expires_at: Moment


class Desired(Message, frozen=True, kw_only=True):
    """Controller to device: all models that it shall run.

    A model that is not named stays unchanged: removal is said, never inferred.

    Attributes:
        sequence: Grows with every change; the device says in its report which one it heard last.
        models: By name: what to do with it.
        captures: By model: request for samples. A request that is not named any more has ended.
        log: Request for log lines; None once the fleet has the lines.
    """

    sequence: int
    models: dict[str, ModelOrder]
    captures: dict[str, CaptureOrder] = msgspec.field(default_factory=dict)
    log: LogOrder | None = None


class Certificate(Message, frozen=True, kw_only=True):
    """Controller to one device: its next certificate.

    Attributes:
        certificate: PEM; of the key that the device has.
        authority: PEM of the certificate of the authority that issued it, which may be renewed.
    """

    certificate: Pem
    authority: Pem = ""

"""Samples of devices, as the API accepts requests and returns encrypted samples."""

from typing import Annotated

import msgspec

from edgepack.fleet.documents.rollouts import Selector
from edgepack.wire.orders import CAPTURE_REASONS, MAX_CAPTURE_SAMPLES, Reason

DAY_S = 24 * 3600.0


class CaptureRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request for samples of a model.

    Attributes:
        model: The model's name.
        selector: The devices; those that serve the model are asked.
        samples: Samples in total; each device gives an equal share.
        of: Reasons for which a device chooses a sample: inputs that push the features that differ
            from the build, answers with little confidence, answers that differ in the shadow.
        recipient: Public key (PEM) to which devices encrypt the samples.
        collect_s: Seconds during which devices choose.
        valid_s: Seconds after which devices send no more.
    """

    model: Annotated[str, msgspec.Meta(max_length=100)]
    selector: Selector
    samples: Annotated[int, msgspec.Meta(ge=1, le=MAX_CAPTURE_SAMPLES)] = 200
    of: Annotated[tuple[Reason, ...], msgspec.Meta(min_length=1, max_length=3)] = CAPTURE_REASONS
    recipient: Annotated[str, msgspec.Meta(max_length=8192)]
    collect_s: Annotated[float, msgspec.Meta(ge=0, le=30 * DAY_S)] = 3600.0
    valid_s: Annotated[float, msgspec.Meta(ge=1, le=60 * DAY_S)] = 7 * DAY_S


class CaptureDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A device of a request.

    Attributes:
        device: Its id.
        state: `REFUSED`, `COLLECTING`, `UPLOADING` or `DONE`; `ENDED` if the request expired, a
            later request replaced it, or the device was removed; "" before the device answered.
        because: Reason of a refusal, an end, a pause or dropped samples; "" without a reason.
        kept: Encrypted samples that wait on the device.
        dropped: Samples that were dropped on the device, or refused by the fleet.
        received: Samples that the fleet has.
    """

    device: str
    state: str = ""
    because: str = ""
    kept: int = 0
    dropped: int = 0
    received: int = 0


class CaptureView(msgspec.Struct, frozen=True, kw_only=True):
    """A request for samples.

    Attributes:
        capture: Its id, such as `s1`.
        model: The model's name.
        samples, share: Samples in total, and of each device.
        of: Reasons for which devices choose samples.
        key: Id of the public key to which devices encrypt.
        made_at, expires_at: Seconds since the epoch (UTC).
        devices: The asked devices.
    """

    capture: str
    model: str
    samples: int
    share: int
    of: tuple[str, ...]
    key: str
    made_at: float
    expires_at: float
    devices: tuple[CaptureDevice, ...]

    @property
    def is_over(self) -> bool:
        """True if no device sends any more."""
        return all(one.state in ("REFUSED", "DONE", "ENDED") for one in self.devices)


class SampleView(msgspec.Struct, frozen=True, kw_only=True):
    """An encrypted sample.

    Attributes:
        device: The sender.
        sample: SHA-256 of the encrypted sample.
        capture: Id of the request.
        reason: Reason of the choice.
        size_bytes: Size of the encrypted sample.
        received_at: Seconds since the epoch (UTC).
    """

    device: str
    sample: str
    capture: str
    reason: str
    size_bytes: int
    received_at: float


class SealedSample(msgspec.Struct, frozen=True, kw_only=True):
    """The content of an encrypted sample.

    Attributes:
        tenant: Tenant of the fleet: a part of the place that a sample is bound to.
        content: The encrypted bytes, base64 in JSON.
    """

    tenant: str
    content: bytes


class RemovedSamples(msgspec.Struct, frozen=True, kw_only=True):
    """Removed samples.

    Attributes:
        count: Number of samples.
    """

    count: int


class PulledSamples(msgspec.Struct, frozen=True, kw_only=True):
    """Samples that were decrypted into a folder.

    Attributes:
        folder: The folder.
        samples: Number of files.
        duplicates: Samples with the content of another sample, left out.
        unreadable: Samples that another key opens, that were changed, that are no arrays, or that
            have NaN or infinity.
    """

    folder: str
    samples: int
    duplicates: int
    unreadable: int

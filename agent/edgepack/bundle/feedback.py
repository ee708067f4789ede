"""Measurements of a model's variants by a fleet: a file for the next build of the model."""

from pathlib import Path
from typing import Annotated

import msgspec

from edgepack.errors import BundleError
from edgepack.text import printable
from edgepack.versions import Format, Version

MAX_FEEDBACK_BYTES = 16 * 1024 * 1024
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Milliseconds = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
Index = Annotated[float, msgspec.Meta(ge=0, le=1e6)]
Word = Annotated[str, msgspec.Meta(max_length=400)]


class DriftedFeature(msgspec.Struct, frozen=True, kw_only=True):
    """A feature of devices' inferences that differs from the build's samples.

    Attributes:
        words: The feature, such as `share of 'cat'`.
        devices: Devices that report the difference.
        difference: Median over devices of the difference beyond chance, standard deviations.
        now, build: Mean on the devices (median over devices), and at the build.
        is_change: Whether a device reports a change for good, not only a difference.
    """

    words: Word
    devices: Count
    difference: Index
    now: float
    build: float
    is_change: bool = False


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of a release's variant on devices of a single kind.

    Attributes:
        version, digest: The release: its version, and its root digest (hex).
        variant, provider: Variant, and its execution provider.
        hardware_class: Hardware class of these devices.
        is_simulator: Whether that provider only simulates its hardware there, or the devices
            themselves are simulated: the times are meaningless for real devices.
        probed: Devices that probed the variant with the golden samples.
        right: Devices where every output held its tolerance.
        wrong_because: The most frequent reason of all other devices; "" without a reason.
        chosen: Devices that serve the variant.
        fallbacks: Devices that should use another provider.
        probe_ms: Median over devices of the time of a golden inference, milliseconds; None without
            a timed inference.
        worst_nrmse: Greatest relative error of any device; None without a measurement.
        inferences, failures: Real inferences, and inferences that raised.
        p50_ms, p95_ms, p99_ms: Of the real inferences, milliseconds; None where there was none.
        drift: Median over devices of the greatest difference of a feature from the build's samples,
            standard deviations; None without reports.
        worst_drift: The greatest.
        drift_devices: Number of devices with reports.
        drifted: Features that differ on the devices that serve the variant, those on most devices
            first.
        loss: Median over devices of the share of the task that fallen confidence costs, about; None
            without evidence of harm.
        shadow_count: Inferences that a second model computed, too.
        shadow_agreed: Shadow inferences in which both releases agreed.
        shadow_devices: Devices with enough shadow inferences for a share of their own.
        shadow_mean: Mean over these devices of the share that agreed; None without a device.
        shadow_most: Upper bound of this mean, 97.5 %; None below 3 devices.
        metric, budget: Metric and budget of the build's accuracy gate; "" and None if unknown.
    """

    version: Word
    digest: Word
    variant: Word
    provider: Word
    hardware_class: Word
    is_simulator: bool = False
    probed: Count = 0
    right: Count = 0
    wrong_because: Word = ""
    chosen: Count = 0
    fallbacks: Count = 0
    probe_ms: Milliseconds | None = None
    worst_nrmse: float | None = None
    inferences: Count = 0
    failures: Count = 0
    p50_ms: Milliseconds | None = None
    p95_ms: Milliseconds | None = None
    p99_ms: Milliseconds | None = None
    drift: Index | None = None
    worst_drift: Index | None = None
    drift_devices: Count = 0
    drifted: Annotated[tuple[DriftedFeature, ...], msgspec.Meta(max_length=10)] = ()
    loss: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    shadow_count: Count = 0
    shadow_agreed: Count = 0
    shadow_devices: Count = 0
    shadow_mean: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    shadow_most: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    metric: Word = ""
    budget: float | None = None


class Feedback(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of a model by a fleet.

    Attributes:
        model: Its name.
        at: Time of the collection, seconds since the epoch (UTC).
        evidence: By release (the newest first), variant, provider and hardware class.
    """

    model: Word
    at: float
    evidence: tuple[Evidence, ...] = ()


FORMAT = Format("feedback", Feedback, Version(1, 0))


def read_feedback(path: Path) -> Feedback:
    """Read a file of feedback.

    Raises:
        BundleError: The file cannot be read, or is not feedback.
        NewerVersionError: A newer edgepack wrote the file.
    """
    remedy = "edgepack fleet feedback MODEL -o feedback.json writes one"
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FEEDBACK_BYTES + 1)
    except OSError as error:
        raise BundleError(
            f"the feedback cannot be read: {error.strerror}", found_in=str(path), remedy=remedy
        ) from error
    if len(content) > MAX_FEEDBACK_BYTES:
        raise BundleError(
            f"the feedback is over {MAX_FEEDBACK_BYTES // 2**20} MB", found_in=str(path)
        )
    try:
        return FORMAT.decode(content).value
    except ValueError as error:
        problem = f"this is not feedback of a fleet: {printable(str(error))}"
        raise BundleError(problem, found_in=str(path), remedy=remedy) from error

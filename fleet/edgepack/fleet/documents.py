"""What the fleet's API takes and gives, as typed values; JSON on the way."""

from typing import Literal

import msgspec

from edgepack.fleet.rollout.rules import OnBreach
from edgepack.wire.messages import BundleRef


class Selector(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which devices a rollout is for.

    Attributes:
        kind: Everybody, a group, or the devices that are named.
        group: Its name when `kind` is `group`.
        devices: Their ids when `kind` is `devices`.
    """

    kind: Literal["all", "group", "devices"]
    group: str = ""
    devices: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.kind == "group":
            return f"group {self.group}"
        return "all devices" if self.kind == "all" else f"devices {', '.join(self.devices)}"


class RolloutRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rollout to start.

    Attributes:
        digest: The release, as `POST /v1/releases` answered.
        selector: Its devices.
        waves: As `edgepack.fleet.rollout.waves.parse_waves` reads them.
        soak_s: How long the model serves on a device before it is committed there.
        deadline_s: Time a device has from its offer; longer than the soak.
        max_failed_share: 0..1, see `Threshold`.
        min_sample: See `Threshold`.
        on_breach: See `Threshold`.
    """

    digest: str
    selector: Selector
    waves: str = "1,10%,100%"
    soak_s: float = 10.0
    deadline_s: float = 900.0
    max_failed_share: float = 0.1
    min_sample: int = 5
    on_breach: OnBreach = "pause"


class EnrollRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A device to enrol.

    Attributes:
        device: Its id.
        group: Its group.
        signing_request: PEM of a certificate signing request; "" when the broker has no TLS.
    """

    device: str
    group: str
    signing_request: str = ""


class Enrollment(msgspec.Struct, frozen=True, kw_only=True):
    """What a device needs to know of its fleet.

    Attributes:
        device, tenant, broker: Go into its settings.
        trusted_keys: PEM of the public keys whose bundles it accepts.
        certificate, authority: PEM of its certificate and of the fleet's CA; "" without TLS.
    """

    device: str
    tenant: str
    broker: str
    trusted_keys: tuple[str, ...]
    certificate: str = ""
    authority: str = ""


class FleetInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The fleet at a glance.

    Attributes:
        tenant, broker: What it serves, and through which broker.
        is_connected: Whether the controller is connected to the broker now.
        broker_is_tls: Whether devices need certificates.
        devices, online: Enrolled devices, and those that are connected.
        counters: Messages by what became of them.
        sent_bytes: Chunk bytes the depot sent by `broadcast` and `repair`.
        pace_bytes_per_s: The depot's current rate to a single device.
    """

    tenant: str
    broker: str
    is_connected: bool
    broker_is_tls: bool
    devices: int
    online: int
    counters: dict[str, int]
    sent_bytes: dict[str, int]
    pace_bytes_per_s: float


class DeviceView(msgspec.Struct, frozen=True, kw_only=True):
    """A device as the fleet knows it."""

    device: str
    group: str
    online: bool
    last_seen: float | None
    hardware_class: str
    state: str
    because: str
    progress: float
    active: BundleRef | None
    variant: str
    provider: str
    is_fallback: bool
    choice_because: str
    wanted: BundleRef | None
    rollout: str


class AssignmentView(msgspec.Struct, frozen=True, kw_only=True):
    """One device's part in a rollout."""

    device: str
    wave: int
    state: str
    offered_at: float | None
    decided_at: float | None
    because: str
    device_state: str = ""
    progress: float = 0.0
    provider: str = ""
    variant: str = ""


class LatencyView(msgspec.Struct, frozen=True, kw_only=True):
    """Latency of real inferences, devices of a kind taken together."""

    hardware_class: str
    provider: str
    variant: str
    devices: int
    inferences: int
    failures: int
    p50_ms: float
    p95_ms: float
    p99_ms: float


class RolloutView(msgspec.Struct, frozen=True, kw_only=True):
    """A rollout as it stands. `wave` counts from 1; 0 means that none has begun."""

    rollout: str
    bundle: BundleRef
    selector: str
    waves: str
    wave: int
    wave_count: int
    state: str
    because: str
    started_at: float
    changed_at: float
    soak_s: float
    deadline_s: float
    max_failed_share: float
    min_sample: int
    on_breach: str
    counts: dict[str, int]
    assignments: tuple[AssignmentView, ...] = ()
    latency: tuple[LatencyView, ...] = ()


class EventView(msgspec.Struct, frozen=True, kw_only=True):
    """One event; `id` grows, so that a reader can ask for what is newer."""

    id: int
    at: float
    device: str
    kind: str
    bundle: str
    from_state: str
    to_state: str
    because: str
    rollout: str


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request was not carried out: an `EdgepackError` on its way to the command line."""

    problem: str
    found_in: str | None = None
    remedy: str | None = None


class ReleaseView(msgspec.Struct, frozen=True, kw_only=True):
    """A release that the fleet holds."""

    bundle: BundleRef
    size_bytes: int
    added_at: float

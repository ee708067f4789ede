"""Devices, as the API takes and gives them."""

from pathlib import Path

import msgspec

from edgepack.wire.messages import BundleRef

CONTROLLER = "edgepack-controller"
"""Client id and, with certificates, user name of the controller; no device may have it."""


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


class EnrolledDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A device that was taken in, and where its settings were written.

    Attributes:
        device: Its id.
        group: Its group.
        config: Path of the `agent.toml` that its agent reads.
    """

    device: str
    group: str
    config: Path


class ModelView(msgspec.Struct, frozen=True, kw_only=True):
    """One model of a device as the fleet knows it.

    Attributes:
        name: Its name.
        state: Life cycle state of what the device was told of it, or `IDLE`; "" before the device
            said anything of it.
        because: Its reason for that state.
        progress: 0..1 of the bytes while it downloads.
        active: The bundle that serves on it now; None while none does.
        variant: The variant of that bundle that it chose; "" while none serves.
        provider: The execution provider that the variant runs on; "" while none serves.
        is_simulator: Whether that provider only simulates its hardware there.
        is_fallback: Whether that is another provider than the device was meant to use.
        choice_because: The device's reason for its choice.
        wanted: The bundle that it was last told to run; None when nothing is wanted of it.
        rollout: Id of the rollout that told it; "" when none did.
    """

    name: str
    state: str
    because: str
    progress: float
    active: BundleRef | None
    variant: str
    provider: str
    is_simulator: bool
    is_fallback: bool
    choice_because: str
    wanted: BundleRef | None
    rollout: str


class DeviceView(msgspec.Struct, frozen=True, kw_only=True):
    """A device as the fleet knows it.

    Attributes:
        device: Its id.
        group: Its group.
        online: Whether it is connected to the broker now.
        last_seen: When it last reported, seconds since the epoch (UTC); None before its first
            report.
        hardware_class: What like devices have in common, as it said; "" before its first report.
        models: Its models, by name: those it reports, and those it was told of.
    """

    device: str
    group: str
    online: bool
    last_seen: float | None
    hardware_class: str
    models: tuple[ModelView, ...] = ()

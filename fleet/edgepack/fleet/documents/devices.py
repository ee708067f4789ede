"""Devices, as the API accepts and returns devices."""

from pathlib import Path

import msgspec

from edgepack.wire.orders import BundleRef
from edgepack.wire.reports import Choice, DeviceFacts, Drift, Outcomes, Watched

SIMULATED = "simulated"
"""Agent version of a device that `edgepack simulate` plays: it runs no model, whatever comes."""


class EnrollRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A device to enrol.

    Attributes:
        device: Its id.
        group: Its group.
        labels: Its labels, by key.
        replace: Whether to replace an enrolled device with the same id.
        signing_request: PEM of a certificate signing request; "" when a token is asked for.
        token_valid_s: Validity, in seconds, of a token for the first certificate, which replaces
            the certificate; None makes no token.
    """

    device: str
    group: str
    labels: dict[str, str] = {}
    replace: bool = False
    signing_request: str = ""
    token_valid_s: float | None = None


class Enrollment(msgspec.Struct, frozen=True, kw_only=True):
    """Data of the fleet that a device needs for enrolment.

    Attributes:
        device, tenant, broker: Go into its settings.
        trusted_keys: PEM of the public keys that the device trusts for bundles.
        certificate, authority: PEM of the device's certificate ("" with a token) and of the fleet's
            CA.
        root: The fleet's TUF root metadata; "" from a fleet that has none.
        token: Token for the first certificate; "" if not requested.
        expires_at: When that token is over, seconds since the epoch.
        sources: URLs of bundle sources other than the broker.
    """

    device: str
    tenant: str
    broker: str
    trusted_keys: tuple[str, ...]
    sources: tuple[str, ...] = ()
    certificate: str = ""
    authority: str = ""
    root: str = ""
    token: str = ""
    expires_at: float | None = None


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


class PackagedDevice(msgspec.Struct, frozen=True, kw_only=True):
    """An enrolled device, and the file for its setup.

    Attributes:
        device: Its id.
        group: Its group.
        package: Path of the file for `edgepack-agent enroll`.
        expires_at: Expiry of the enrolment token, seconds since the epoch (UTC); None if the file
            has the device's key and certificate.
    """

    device: str
    group: str
    package: Path
    expires_at: float | None


class ModelView(msgspec.Struct, frozen=True, kw_only=True):
    """Model of a device in the fleet's view.

    Attributes:
        name: Its name.
        state: Life cycle state of the device's order, or `IDLE`; "" before the device's first
            report about the order.
        because: Its reason for that state.
        progress: 0..1 of the bytes during a download.
        active: The serving bundle; None while nothing serves.
        variant: The chosen variant of that bundle; "" while nothing serves.
        provider: The execution provider that the variant runs on; "" while none serves.
        is_simulator: Whether that provider only simulates its hardware there.
        is_fallback: Whether that is another provider than the device was meant to use.
        choice_because: The device's reason for its choice.
        wanted: The bundle of the last order; None without an order.
        rollout: Id of the rollout in the report; "" for none.
        outcomes: How the most recent inferences of the active bundle ended; None while the device
            reported none.
        drift: Differences of its recent inferences from the build's samples; None while the device
            reported none.
        watch: The device's watch over the active bundle: state, symptom, and the last decision.
            None while the device reported none.
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
    outcomes: Outcomes | None = None
    drift: Drift | None = None
    watch: Watched | None = None


class DeviceView(msgspec.Struct, frozen=True, kw_only=True):
    """A device in the fleet's view.

    Attributes:
        device: Its id.
        group: Its group.
        online: Whether the device is connected to the broker now.
        last_seen: Time of the last report, seconds since the epoch (UTC); None before the first
            report.
        hardware_class: The reported class of like devices; "" before the first report.
        labels: Labels by key.
        models: The reported and the ordered models, by name.
        warnings: The device's warnings that need a person.
    """

    device: str
    group: str
    online: bool
    last_seen: float | None
    hardware_class: str
    labels: dict[str, str] = {}
    models: tuple[ModelView, ...] = ()
    warnings: tuple[str, ...] = ()


class DeviceFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Filter of devices; an empty field matches all devices.

    Attributes:
        group: The devices' group.
        where: Expression over labels and facts, such as `soc=QCS6490 and site=berlin`.
        standing: `degraded` (a model serves with a symptom, or not as wanted), `failing` (the last
            update of a model failed), `warned` (the device warns),
            `updating`, `settled`, `behind` (the newest orders are not received or not carried out
            yet) or `unheard` (no report yet).
        online: `yes` or `no`.
        model: A model of the devices.
        digest: Root digest of the serving release; `none` while nothing serves.
        hardware_class: Class of like devices.
    """

    group: str = ""
    where: str = ""
    standing: str = ""
    online: str = ""
    model: str = ""
    digest: str = ""
    hardware_class: str = ""


class DevicePart(msgspec.Struct, frozen=True, kw_only=True):
    """Assignment of a device to a rollout.

    Attributes:
        rollout: The rollout's id.
        bundle: The rollout's release.
        state: See `AssignmentView`.
        because: The reason in a sentence.
    """

    rollout: str
    bundle: BundleRef
    state: str
    because: str


class DeviceDetails(DeviceView, frozen=True, kw_only=True):
    """A device in full.

    Attributes:
        enrolled_at: Time of enrolment, seconds since the epoch (UTC).
        certificate: Serial number of its newest certificate, hex; "" for none.
        certificate_ends_at: Expiry of that certificate, seconds since the epoch (UTC); None without
            a certificate, or if only the number is known.
        obeys_unsigned: Whether the device was enrolled before its fleet had a root, and obeys
            unsigned orders; enrol the device again.
        certificate_pem: The certificate, to encrypt bundles to; "" when unknown.
        facts: The reported facts; None before the first report.
        rollouts: Its part in each rollout, the newest first.
        dropped: Dropped messages of the device since the fleet's start, by reason.
        choices: Reason for the running variant of each model, by name of the model.
    """

    enrolled_at: float
    certificate: str
    certificate_ends_at: float | None = None
    certificate_pem: str = ""
    obeys_unsigned: bool = False
    facts: DeviceFacts | None
    rollouts: tuple[DevicePart, ...]
    dropped: dict[str, int] = {}
    choices: dict[str, Choice] = {}


class GroupView(msgspec.Struct, frozen=True, kw_only=True):
    """A group of devices.

    Attributes:
        group: Its name.
        devices, online: Number of devices, and of connected devices.
    """

    group: str
    devices: int
    online: int


class DeviceChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Change of devices' attributes.

    Attributes:
        devices: Their ids.
        group: The new group; "" keeps the group.
        labels: Labels to set, by key; an empty value removes a label.
    """

    devices: tuple[str, ...]
    group: str = ""
    labels: dict[str, str] = {}


class DeviceRemoval(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Devices to take out of the fleet.

    Attributes:
        devices: Their ids.
    """

    devices: tuple[str, ...]


class RemovedDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A device that was taken out of the fleet.

    Attributes:
        device: Its id.
        certificate: Serial number of the revoked certificate, hex; "" if the device had no known
            certificate.
        had_none: Whether the device never got a certificate.
    """

    device: str
    certificate: str
    had_none: bool = False


class RevocationRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A certificate to revoke.

    Attributes:
        certificate: PEM of a certificate that the fleet's CA issued.
    """

    certificate: str


class Revocations(msgspec.Struct, frozen=True, kw_only=True):
    """The fleet's list of revoked certificates, for its broker.

    Attributes:
        pem: The list (X.509 CRL), PEM.
        certificates: Number of revoked certificates.
    """

    pem: str
    certificates: int

"""Devices, as the API takes and gives them."""

from pathlib import Path

import msgspec

from edgepack.wire.messages import BundleRef, Choice, DeviceFacts, Drift, Outcomes

SIMULATED = "simulated"
"""Agent version of a device that `edgepack simulate` plays: it runs no model, whatever comes."""


class EnrollRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A device to enrol.

    Attributes:
        device: Its id.
        group: Its group.
        labels: Its labels, by key.
        replace: Whether a device that has the id already is replaced by this one.
        signing_request: PEM of a certificate signing request; "" when a token is asked for.
        token_valid_s: Gives, instead of a certificate, a token by which the device gets one itself,
            good for so many seconds; None gives none.
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
        trusted_keys: PEM of the public keys whose bundles it accepts.
        certificate, authority: PEM of its certificate ("" when it gets a token) and of the fleet's
            CA.
        root: The fleet's TUF root metadata; "" from a fleet that has none.
        token: By which it gets its certificate itself; "" where none was asked for.
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
    """A device that was taken in, and the file that it is set up from.

    Attributes:
        device: Its id.
        group: Its group.
        package: Path of the file for `edgepack-agent enroll`.
        expires_at: Until when the device can get its certificate by it, seconds since the epoch
            (UTC); None where the file has the device's key and certificate.
    """

    device: str
    group: str
    package: Path
    expires_at: float | None


class ModelView(msgspec.Struct, frozen=True, kw_only=True):
    """Model of a device in the fleet's view.

    Attributes:
        name: Its name.
        state: Life cycle state of the device's order, or `IDLE`; "" before the
            device said anything of it.
        because: Its reason for that state.
        progress: 0..1 of the bytes while it downloads.
        active: The bundle that serves on it now; None while none does.
        variant: The variant of that bundle that it chose; "" while none serves.
        provider: The execution provider that the variant runs on; "" while none serves.
        is_simulator: Whether that provider only simulates its hardware there.
        is_fallback: Whether that is another provider than the device was meant to use.
        choice_because: The device's reason for its choice.
        wanted: The bundle of the last order; None without an order.
        rollout: Id of the rollout that reported it; "" when none did.
        outcomes: How the most recent inferences of the active bundle ended; None while the device
            reported none.
        drift: Differences of its recent inferences from the build's samples; None while the device
            reported none.
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


class DeviceView(msgspec.Struct, frozen=True, kw_only=True):
    """A device as the fleet knows it.

    Attributes:
        device: Its id.
        group: Its group.
        online: Whether it is connected to the broker now.
        last_seen: When it last reported, seconds since the epoch (UTC); None before its first
            report.
        hardware_class: What like devices have in common, as it said; "" before its first report.
        labels: What people call it by, by key.
        models: Its models, by name: those it reports, and those it has an order for.
        warnings: What is wrong with it and needs a person, as it said.
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
        group: The group that they are in.
        where: What their labels and facts are, such as `soc=QCS6490 and site=berlin`.
        standing: `failing` (the last update of a model failed), `warned` (they warn of something),
            `updating`, `settled`, `behind` (they have not heard their newest orders, or are still
            carrying them out) or `unheard` (they never reported).
        online: `yes` or `no`.
        model: The model that they have.
        digest: Root digest of the release that serves on them; `none` for one of which nothing
            serves.
        hardware_class: What like devices have in common.
    """

    group: str = ""
    where: str = ""
    standing: str = ""
    online: str = ""
    model: str = ""
    digest: str = ""
    hardware_class: str = ""


class DevicePart(msgspec.Struct, frozen=True, kw_only=True):
    """A device's part in one rollout.

    Attributes:
        rollout: The rollout's id.
        bundle: What it rolls out.
        state: See `AssignmentView`.
        because: The reason in one sentence.
    """

    rollout: str
    bundle: BundleRef
    state: str
    because: str


class DeviceDetails(DeviceView, frozen=True, kw_only=True):
    """A device in full.

    Attributes:
        enrolled_at: When it was enrolled, seconds since the epoch (UTC).
        certificate: Serial number of its newest certificate, hex; "" when it has none.
        certificate_ends_at: When that ends, seconds since the epoch (UTC); None when it has none,
            or one of which only the number is known.
        obeys_unsigned: Whether it was enrolled before its fleet had a root, and obeys orders that
            nobody signed; enrol it again.
        certificate_pem: The certificate itself, to encrypt bundles to; "" when it is not known.
        facts: What it is, as it said; None before its first report.
        rollouts: Its part in each rollout, the newest first.
        dropped: Messages of it that were dropped since the fleet serves, by reason.
        choices: Why each of its models runs the variant that it runs, by name of the model.
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
        devices, online: How many it has, and how many of them are connected.
    """

    group: str
    devices: int
    online: int


class DeviceChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Change of devices' attributes.

    Attributes:
        devices: Their ids.
        group: Their new group; "" leaves it.
        labels: Labels to set, by key; an empty value takes one away.
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
        certificate: Serial number of the certificate that was revoked, hex; "" when it had none
            that is known.
        had_none: Whether it never got one.
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
        certificates: How many it revokes.
    """

    pem: str
    certificates: int

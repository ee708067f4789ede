"""Rollouts, as the API accepts and returns rollouts."""

import shlex
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from edgepack.fleet.documents.gates import BY_NAME, GateView
from edgepack.fleet.documents.latency import TextTimes
from edgepack.settings import declared
from edgepack.wire.orders import MAX_SOAK_S, BundleRef

OnBreach = Literal["pause", "abort", "rollback"]
"""What happens to a rollout, or to a hardware class, that breaches a gate."""
GateEvidence = Literal["required", "optional"]
"""What the next wave does after a wave that measured too little: wait for a person, or begin."""
SplitBy = Literal["", "hardware"]
"""What is judged and held back alone; "" means that all devices are in it together."""


_MAX_NAMED = 5
MAX_DEVICES = 1_000_000
MAX_WAIT_S = 366 * 24 * 3600.0


class Selector(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Selection of a rollout's devices.

    Attributes:
        kind: All devices, a group, an expression, or named devices.
        group: Its name when `kind` is `group`.
        where: The expression when `kind` is `where`, such as `soc=QCS6490 and site=berlin`.
        devices: Their ids when `kind` is `devices`.
    """

    kind: Literal["all", "group", "where", "devices"]
    group: str = ""
    where: str = ""
    devices: tuple[str, ...] = ()

    def __str__(self) -> str:
        more = f" and {len(self.devices) - _MAX_NAMED} more" * (len(self.devices) > _MAX_NAMED)
        return {
            "all": "all devices",
            "group": f"group {self.group}",
            "where": f"devices where {self.where}",
            "devices": f"devices {', '.join(self.devices[:_MAX_NAMED])}{more}",
        }[self.kind]

    def as_options(self) -> str:
        """Return the same as options of a command."""
        return {
            "all": "--all",
            "group": f"--group {self.group}",
            "where": f"--where {shlex.quote(self.where)}",
            "devices": " ".join(f"--device {name}" for name in self.devices),
        }[self.kind]


class RolloutSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of a rollout. `edgepack.settings` derives options and the form from this struct.

    Attributes:
        gates: Thresholds by gate (see `edgepack rollout start --help`): a ratio to the previous
            release, or a rise; None switches a gate off, a gate that is missing has its default.
    """

    waves: Annotated[
        str,
        Meta(title="Waves", description="Devices addressed in all after each wave, numbers or %."),
    ] = "1,10%,100%"
    control: Annotated[
        str,
        Meta(
            pattern=r"^(\d{1,7}|(100|\d{1,2})%)?$",
            title="Control group",
            description="Devices that get the release last, a number or %: gates compare "
            "the others with them.",
            extra={"example": "10%"},
        ),
    ] = ""
    soak_s: Annotated[
        float,
        Meta(
            ge=0,
            le=MAX_SOAK_S,
            title="Soak, seconds",
            description="Seconds that a model serves before its commit.",
            extra={"option": "--soak"},
        ),
    ] = 10.0
    min_inferences: Annotated[
        int,
        Meta(
            ge=0,
            le=1_000_000_000,
            title="Inferences",
            description="Real inferences that a soak must see. The soak waits for them, and fails "
            "shortly before the deadline.",
            extra={"part": "pace"},
        ),
    ] = 0
    shadow: Annotated[
        bool,
        Meta(
            title="Shadow first",
            description="The release first runs next to the serving release, which answers; a "
            "device switches once both agree on its own inputs.",
            extra={"part": "pace"},
        ),
    ] = False
    shadow_differs: Annotated[
        float,
        Meta(
            ge=0.001,
            le=1,
            title="Answers that may differ, %",
            description="Share of answers in which the release is meant to differ from the serving "
            "release; 100% compares only failures and latency.",
            extra={"unit": "share", "part": "pace"},
        ),
    ] = 0.02
    deadline_s: Annotated[
        float,
        Meta(
            ge=0,
            le=MAX_WAIT_S,
            title="Deadline, seconds",
            description="Seconds from the offer until a device counts as silent.",
            extra={"option": "--deadline"},
        ),
    ] = 900.0
    max_failed_share: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            title="Failures let pass, %",
            description="Greatest share of failed and silent devices of a wave.",
            extra={"option": "--max-failures", "unit": "share"},
        ),
    ] = 0.1
    min_sample: Annotated[
        int,
        Meta(
            ge=1,
            le=MAX_DEVICES,
            title="Smallest sample",
            description="Decided devices before a wave under way is judged.",
        ),
    ] = 5
    on_breach: Annotated[
        OnBreach,
        Meta(
            title="On a breach",
            description="After a breach: pause offers, abort (undecided devices keep their "
            "release), or roll the others back too.",
        ),
    ] = "pause"
    gates: dict[str, float | None] = {}
    gate_evidence: Annotated[
        GateEvidence,
        Meta(
            title="If a wave measured too little",
            description="After a wave of which too few devices measured the release against the "
            "previous one: wait for a person, or begin the next wave.",
            extra={
                "part": "judgement",
                "words": {"required": "wait for a person", "optional": "begin"},
            },
        ),
    ] = "required"
    split_by: Annotated[
        SplitBy,
        Meta(
            title="Judged are",
            description="Judge each hardware class alone; one that breaches a gate is held back "
            "alone.",
            extra={
                "part": "judgement",
                "words": {"": "all devices together", "hardware": "each hardware class alone"},
            },
        ),
    ] = ""
    evidence_s: Annotated[
        float,
        Meta(
            ge=0,
            le=MAX_WAIT_S,
            title="Evidence, seconds",
            description="Seconds that a finished wave waits for measurements of devices that "
            "measured the previous release.",
            extra={"option": "--evidence-wait", "part": "judgement"},
        ),
    ] = 900.0
    look_s: Annotated[
        float,
        Meta(
            ge=1,
            le=24 * 3600.0,
            title="First look, seconds",
            description="Seconds of measurements before gates compare devices first; again after "
            "3, 12, 36 and 144 times as long, and at the end of a wave.",
            extra={"option": "--first-look", "part": "judgement"},
        ),
    ] = 600.0
    max_per_site: Annotated[
        int,
        Meta(
            ge=0,
            le=MAX_DEVICES,
            title="At once at a site",
            description="Devices with the same label 'site' that update at the same time; 0 for "
            "any number.",
            extra={"part": "pace"},
        ),
    ] = 0
    approve_waves: Annotated[
        bool,
        Meta(
            title="Each wave waits for a person",
            description="Each wave after the first waits for a person.",
            extra={"part": "pace"},
        ),
    ] = False
    not_before: Annotated[
        Annotated[float, Meta(ge=0, le=2.0**33)] | None,
        Meta(
            title="Not before",
            description="Start of the first wave: 2030-01-31T02:00 (your time; UTC on the "
            "dashboard), or with +01:00.",
            extra={"unit": "time", "part": "pace"},
        ),
    ] = None
    window: Annotated[
        str,
        Meta(
            title="Window",
            description="When devices are offered the release, in the time zone of their label "
            "'timezone' (default UTC): 'mon-fri 02:00-05:00'.",
            extra={"example": "mon-fri 02:00-05:00", "part": "pace"},
        ),
    ] = ""
    supersede: Annotated[
        bool,
        Meta(
            title="Take devices over from older rollouts of the model",
            description="Take devices over from older rollouts of the model.",
            extra={"part": "pace"},
        ),
    ] = False

    @property
    def thresholds(self) -> dict[str, float | None]:
        """Thresholds of gates that differ from the defaults.

        Where the release is meant to differ, the gate `shadow` lets as much pass, unless given.
        """
        gate = BY_NAME["shadow"]
        if "shadow" in self.gates or not self.shadow or self.shadow_differs <= gate.threshold:
            return self.gates
        return {**self.gates, "shadow": self.shadow_differs if self.shadow_differs < 1 else None}


SETTINGS = declared(RolloutSettings)


class RolloutRequest(RolloutSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rollout to start.

    Attributes:
        digest: The release, as `POST /v1/releases` answered.
        selector: Its devices.
    """

    digest: str
    selector: Selector


class RollbackRequest(RolloutSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A release to take back.

    Attributes:
        what: A rollout, such as `r2`, or a release: `NAME@VERSION`, or the first digits of its
            digest.
        selector: Devices to go back, among the devices that run a release; None means all.
    """

    what: str
    selector: Selector | None = None


class AssignmentView(msgspec.Struct, frozen=True, kw_only=True):
    """Assignment of a device to a rollout.

    Attributes:
        device: Its id.
        wave: The device's wave, from 1.
        state: `WAITING`, `OFFERED`, `WORKING`, `COMMITTED`, `FAILED`, `SILENT`, `WITHDRAWN` or
            `RECALLED`.
        offered_at, decided_at: Times of the offer and of the outcome, seconds since the epoch
            (UTC); None before.
        because: The reason in a sentence.
        device_state: The life cycle state that the device itself says; "" when its report is not of
            this rollout.
        progress: 0..1 of the bytes during a download.
        provider, variant: The serving provider and variant; "" while nothing serves.
    """

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


class SetAside(msgspec.Struct, frozen=True, kw_only=True):
    """A device that alone measured a breach, and the device that tried the release instead.

    Attributes:
        wanted: The device that was to try the release; the device runs its previous release again.
        chosen: The device that tried the release instead.
        because: The first device's measurement, a sentence.
        wave: Their wave, from 1.
    """

    wanted: str
    chosen: str
    because: str
    wave: int


class LatencyView(msgspec.Struct, frozen=True, kw_only=True):
    """Latency of real inferences, devices of a kind taken together.

    Attributes:
        hardware_class, provider, variant: The kind: hardware class, and the provider and variant
            that ran.
        devices: Number of devices that reported their latency.
        inferences: Inferences that were timed.
        failures: Inferences that raised.
        p50_ms, p95_ms, p99_ms: Percentiles over all their inferences, milliseconds.
        is_simulator: Whether a simulator of the provider ran the inferences; simulated times are
            not comparable.
        texts: Times of texts; None for inferences that wrote none.
    """

    hardware_class: str
    provider: str
    variant: str
    devices: int
    inferences: int
    failures: int
    p50_ms: float
    p95_ms: float
    p99_ms: float
    is_simulator: bool = False
    texts: TextTimes | None = None


class LatencySpan(msgspec.Struct, frozen=True, kw_only=True):
    """Latency of a release on a hardware class in a span of time.

    Attributes:
        hardware_class: Class of like devices.
        start: When the span begins, seconds since the epoch (UTC).
        inferences: Timed inferences in the span.
        p50_ms, p95_ms: Percentiles over these inferences, milliseconds.
    """

    hardware_class: str
    start: float
    inferences: int
    p50_ms: float
    p95_ms: float


class RolloutView(msgspec.Struct, frozen=True, kw_only=True):
    """A rollout's current state.

    Attributes:
        rollout: Its id, such as `r1`.
        bundle: The release to roll out.
        selector: Its devices, in words.
        settings: The requested settings.
        wave: The wave that is under way, from 1; 0 means that none has begun.
        wave_count: How many waves its devices make.
        state: `RUNNING`, `PAUSED`, `FINISHED` or `ABORTED`; `PREPARING` while a large rollout gets
            its devices.
        because: The reason in a sentence.
        started_at, changed_at: Time of the start, and of the last change of state or wave, seconds
            since the epoch (UTC).
        gates: The result of each gate for each hardware class: the current result while the rollout
            runs, else the result at the decision that stopped or ended the rollout; empty in a list
            of rollouts.
        gates_at: When these results were taken, seconds since the epoch (UTC); None for now.
        stopped_by: The gate that stopped the rollout, such as `gate p95`; "" for none.
        held: The hardware classes that are held back, each with the reason.
        set_aside: Devices that alone measured a breach, each with the device that tried the release
            instead.
        waits_for: Condition that the rollout waits for, besides its devices: a person, its start, a
            maintenance window, room at a site, measurements; "" for none.
        waits_reason: The same as a single word: `limits`, `start`, `measurements`, and, if a person
            has to act, `approval` or `evidence` (a wave measured too little); "" for none.
        takes_back: For a rollback, the release that its devices leave; None otherwise.
        counts: Devices by the state of their part.
        wave_counts: The same for each wave.
        assignments: Devices' assignments, by wave and id: all, or for many devices the assignments
            that need attention (see `FleetClient.rollout_devices`); empty in a list of rollouts.
        latency: Latency of its release's real inferences; empty in a list of rollouts.
        release_problem: Reason why the answering controller cannot send the release now; "" for
            none.
    """

    rollout: str
    bundle: BundleRef
    selector: str
    settings: RolloutSettings
    wave: int
    wave_count: int
    state: str
    because: str
    started_at: float
    changed_at: float
    counts: dict[str, int]
    wave_counts: tuple[dict[str, int], ...] = ()
    takes_back: BundleRef | None = None
    assignments: tuple[AssignmentView, ...] = ()
    latency: tuple[LatencyView, ...] = ()
    release_problem: str = ""
    gates: tuple[GateView, ...] = ()
    held: dict[str, str] = {}
    set_aside: tuple[SetAside, ...] = ()
    waits_for: str = ""
    waits_reason: str = ""
    gates_at: float | None = None
    stopped_by: str = ""

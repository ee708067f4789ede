"""The messages on the wire, as typed values; JSON on the way.

Every message has a version (`edgepack.versions`): unknown fields of a newer minor version are
ignored. States and kinds are text and are shown as received: a newer peer may know more of them.
A reader drops, with a reason, a message that does not fit its type or holds an impossible number or
name. Times are seconds since the epoch (UTC) as floats.
"""

from typing import Annotated, Literal, TypeVar, get_args

import msgspec

from edgepack.decoding import decode_json
from edgepack.errors import TransferError
from edgepack.versions import Format, NewerVersionError, Version

WIRE_VERSION = Version(1, 0)
MAX_SOAK_S = 30 * 24 * 3600.0
"""No device takes an order to soak for longer."""
MAX_SEQUENCE = 2**53
MAX_STEP = 2**32
"""A sequence is higher than the one before by so much at most: no message, however it came to be
believed, uses up the numbers that those after it need."""

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Moment = Annotated[float, msgspec.Meta(ge=0, le=2**33)]
"""Seconds since the epoch (UTC): of a clock that was never set, or up to the year 2242."""
Span = Annotated[float, msgspec.Meta(ge=0, le=2**33)]
Word = Annotated[str, msgspec.Meta(max_length=400)]
"""A name, a digest, a bundle's title."""

Deviations = Annotated[float, msgspec.Meta(ge=0, le=1_000_000)]
"""Standard deviations of one inference."""

Pem = Annotated[str, msgspec.Meta(max_length=8192)]
"""A certificate, or a request for one."""

Reason = Literal["drift", "doubt", "shadow"]
CAPTURE_REASONS: tuple[Reason, ...] = get_args(Reason)
"""Reasons for which a device may choose a sample."""

MAX_CAPTURE_SAMPLES = 10_000
PIECE_BYTES = 64 * 1024
"""Bytes of a sample in a message; the last piece of a sample may be shorter."""

MAX_SAMPLE_BYTES = 16 * 1024 * 1024
"""An encrypted sample, at most."""

Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
Token = Annotated[str, msgspec.Meta(pattern="^[a-z0-9]{1,32}$")]

MAX_LOG_LINES = 500
LogLine = Annotated[str, msgspec.Meta(max_length=500)]

MAX_BATCH = 64
"""Messages of one signed batch."""

MAX_MESSAGE_BYTES = 120 * 1024
"""A message with its header stays below this, so that a broker limit of 128 KiB holds."""


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """Common fields of all messages."""

    v: int = WIRE_VERSION.major
    minor: int = WIRE_VERSION.minor


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
    captures: dict[str, CaptureOrder] = {}
    log: LogOrder | None = None


class ProviderFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Execution provider on this device: available or not, and why.

    Attributes:
        name: ONNX Runtime's name, e.g. `QNNExecutionProvider`.
        available: Whether a session can be asked for it here.
        because: Evidence, e.g. "plug-in onnxruntime-qnn 2.7.0 lists device npu".
        version: Version of the provider's package or library, or "".
        devices: Hardware kinds that it offers: `cpu`, `gpu`, `npu`.
        is_simulator: Whether it simulates its hardware here (QNN HTP on x86-64).
        brought_by: Package that installs a missing provider, or "".
    """

    name: str
    available: bool
    because: str
    version: str = ""
    devices: tuple[str, ...] = ()
    is_simulator: bool = False
    brought_by: str = ""


class DeviceFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of a device. `hardware_class` groups similar devices for baselines.

    `firmware` is the version that the device's installer reports; "" if unknown or without one.
    """

    arch: str
    cpu_model: str
    cpu_count: Count
    cpu_features: tuple[str, ...]
    memory_bytes: Count
    os: str
    soc: str = ""
    python: str
    agent_version: str
    runtime: str
    providers: tuple[ProviderFacts, ...]
    drivers: dict[str, str] = {}
    firmware: Word = ""
    hardware_class: Word


class Preparation(msgspec.Struct, frozen=True, kw_only=True):
    """Result of preparing the golden pictures on a device.

    Attributes:
        right: Whether the bits are those of the build, or the answers are right; None if the
            device cannot prepare pictures.
        because: What was seen, in words.
    """

    right: bool | None
    because: str


class TextPace(msgspec.Struct, frozen=True, kw_only=True):
    """Pace of texts after a prompt.

    Attributes:
        prompt_tokens: Tokens of the prompt.
        first_token_ms: Time to the first token, milliseconds.
        tokens_per_s: Tokens a second after the first token.
    """

    prompt_tokens: Count
    first_token_ms: float
    tokens_per_s: float


class TextProof(msgspec.Struct, frozen=True, kw_only=True):
    """Result of writing texts over a cache on a device.

    Attributes:
        right: Whether tokens over the cache have the probabilities of the text run at once.
        because: Observed numbers, in words.
        cache_bytes: Memory of the cache for a full context.
        paces: Pace after each measured prompt.
    """

    right: bool
    because: str
    cache_bytes: Count = 0
    paces: tuple[TextPace, ...] = ()


class ProbeResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one variant with the golden inputs on this device.

    Attributes:
        variant: Its name.
        provider: The provider it ran on.
        right: Whether every output held its tolerance.
        because: The reason when it is not right, or what was seen when it is.
        latency_ms: Median of the timed runs, milliseconds; None when it did not run.
        taken, total: Nodes the provider took, and all nodes; 0 and 0 when not known.
        worst_nrmse: Greatest root-mean-square error of any output over the root-mean-square of the
            expected values; None when it did not run.
        task_lost: Greatest share of a task that the golden samples lost; None if none was compared.
        peak_bytes: The most memory that the probe was seen to take; 0 when not known.
        preparation: Proof of the preparation of pictures; None without golden pictures.
        texts: Proof and pace of texts; None for a model that writes no texts.

    Example:
        ```python
        from edgepack.agent import ProbeResult, open_model

        def verdict(probe: ProbeResult) -> str:
            took = "" if probe.latency_ms is None else f" in {probe.latency_ms:.1f} ms"
            return f"{probe.variant} is {'right' if probe.right else 'wrong'}{took}"

        with open_model("defects") as model:
            print(*map(verdict, model.choice.probes), sep="\\n")
        ```
    """

    variant: str
    provider: str
    right: bool
    because: str
    latency_ms: float | None = None
    taken: int = 0
    total: int = 0
    worst_nrmse: float | None = None
    task_lost: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    peak_bytes: Count = 0
    preparation: Preparation | None = None
    texts: TextProof | None = None


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """The decision which variant runs: wanted, chosen, because.

    Attributes:
        wanted: Provider that this device was meant to use; "" when it has no wish.
        chosen: Variant that runs; "" when none can.
        provider: Its provider.
        because: The reason in one sentence.
        is_fallback: Whether `provider` is another than `wanted`.
        probes: Every candidate's result.
        rejected: Variants that were no candidates, with the reason.

    Example:
        ```python
        from edgepack.agent import Choice, open_model

        def explain(choice: Choice) -> str:
            return f"{choice.chosen} on {choice.provider}: {choice.because}"

        with open_model("defects") as model:
            print(explain(model.choice))
        ```
    """

    wanted: str
    chosen: str
    provider: str
    because: str
    is_fallback: bool
    probes: tuple[ProbeResult, ...] = ()
    rejected: dict[str, str] = {}


class Active(msgspec.Struct, frozen=True, kw_only=True):
    """The model that serves now."""

    bundle: BundleRef
    choice: Choice
    since: float


class Outcomes(msgspec.Struct, frozen=True, kw_only=True):
    """Outcomes of the most recent real inferences of a release.

    Attributes:
        inferences: All that were tried.
        failed: Inferences that raised.
        not_finite: Those with NaN or infinity in an output that has none in the golden samples,
            although all inputs were finite.
        bad_inputs: The same with NaN or infinity in an input.
        bad_input: The last such input; "" for none.
    """

    inferences: Count = 0
    failed: Count = 0
    not_finite: Count = 0
    bad_inputs: Count = 0
    bad_input: Word = ""


class FeatureDrift(msgspec.Struct, frozen=True, kw_only=True):
    """Difference of one feature between a device's inferences and the build's samples.

    Attributes:
        words: The feature, such as `share of 'cat'`.
        difference: Difference beyond chance, standard deviations of one inference.
        now, build: Mean on the device, and at the build.
        is_change: Whether three windows in a row, or a day, differ beyond chance.
    """

    words: Word
    difference: Deviations
    now: float
    build: float
    is_change: bool = False


class Drift(msgspec.Struct, frozen=True, kw_only=True):
    """Differences between a device's recent inferences and the build's samples.

    Attributes:
        inferences: Inferences that were sketched; older ones count less.
        difference: The greatest difference of a feature, standard deviations.
        features: Features with the greatest differences, in descending order; changes come first.
        loss: Share of the task that fallen confidence costs, about; None without evidence of harm.
    """

    inferences: Count = 0
    difference: Deviations = 0.0
    features: Annotated[tuple[FeatureDrift, ...], msgspec.Meta(max_length=10)] = ()
    loss: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None


class Watched(msgspec.Struct, frozen=True, kw_only=True):
    """State of the watch over a serving release, and its last decision: wanted, chosen, because.

    Attributes:
        state: `WATCHING`; `HEALING` while the device tries other variants; `DEGRADED` while a
            symptom lasts, or another variant or release serves than wanted.
        symptom: Name of the symptom; "" while all is well.
        wanted, chosen: Variant and version that should serve, and those that do; "" while nothing
            was decided.
        because: The reason with its numbers; "" while all is well.
        since: Time of that state, seconds since the epoch; 0 from the start.
        acts: Actions on symptoms since the last calm day or order.
    """

    state: Word = "WATCHING"
    symptom: Word = ""
    wanted: Word = ""
    chosen: Word = ""
    because: str = ""
    since: Moment = 0.0
    acts: Count = 0


class CaptureReport(msgspec.Struct, frozen=True, kw_only=True):
    """State of a request for samples on a device.

    Attributes:
        request: Id of the request.
        state: `REFUSED`, `COLLECTING`, `UPLOADING` or `DONE`.
        because: Reason for a refusal, a pause or dropped samples; "" without a reason.
        kept: Encrypted samples that wait on the device.
        uploaded: Samples that the fleet has.
        dropped: Samples that could not be encrypted, were too large, or were refused by the fleet.
    """

    request: Word
    state: Word
    because: Word = ""
    kept: Count = 0
    uploaded: Count = 0
    dropped: Count = 0


class ReportedModel(msgspec.Struct, frozen=True, kw_only=True):
    """State of one model of a device, as in its journal.

    Attributes:
        state: Its life cycle state.
        because: Reason of the last transition.
        sequence: Sequence of the order that the state speaks of; 0 when none, or a local one.
        acted_sequence: The highest sequence of an order of this model that was acted on; what is
            said under it or a lower one is not heard any more.
        rollout: Its rollout id.
        target: The bundle that the state speaks of.
        active: What serves now.
        previous: The release that was committed before it, kept for a rollback.
        is_too_slow: Whether the device rolled the target back since it was slower there than the
            previous release.
        progress: 0..1 of the bytes while downloading.
        outcomes: How the most recent inferences of what serves ended; None while there are none.
        drift: Differences of what serves from its build; None while too few inferences ran.
        watch: The watch over what serves; None while nothing committed serves.
        capture: State of the last request for samples; None without a request.
    """

    state: str = "IDLE"
    because: str = ""
    sequence: int = 0
    acted_sequence: int = 0
    rollout: str = ""
    target: BundleRef | None = None
    active: Active | None = None
    previous: BundleRef | None = None
    is_too_slow: bool = False
    progress: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    outcomes: Outcomes | None = None
    drift: Drift | None = None
    watch: Watched | None = None
    capture: CaptureReport | None = None


class Trusted(msgspec.Struct, frozen=True, kw_only=True):
    """Fleet metadata that a device with a root has accepted.

    Attributes:
        root, timestamp: Their versions; 0 while it has none.
        is_whole: Whether it has all that the timestamp names, and nothing of it has expired.
        director: Version of the director's word that it accepted last; 0 for none.
    """

    root: Count
    timestamp: Count = 0
    is_whole: bool = False
    director: Count = 0


class Renewal(msgspec.Struct, frozen=True, kw_only=True):
    """Request for renewal, reported while the certificate should be renewed.

    Attributes:
        certificate: The one that it has, PEM.
        signing_request: A request of that certificate's key, PEM: who has it holds the key.
    """

    certificate: Pem
    signing_request: Pem


class Certificate(Message, frozen=True, kw_only=True):
    """Controller to one device: its next certificate.

    Attributes:
        certificate: PEM; of the key that the device has.
        authority: PEM of the certificate of the authority that issued it, which may be renewed.
    """

    certificate: Pem
    authority: Pem = ""


class Reported(Message, frozen=True, kw_only=True):
    """Device to controller, retained: what it is, and each of its models.

    Attributes:
        online: False only in the last will.
        at: When it was said, by the device's clock.
        boot: Random id of this agent process.
        facts: What the device is; None in the last will.
        sequence: Sequence of the `Desired` that it heard last; 0 when none since it started.
        models: By name; a model that was removed stays here as REMOVED.
        warnings: What is wrong with the device and needs a person, one sentence each.
        trust: What it believes of the fleet's metadata; None when it has no root.
        renewal: Asks for another certificate; None while it needs none.
    """

    online: bool
    at: Moment
    boot: Word = ""
    facts: DeviceFacts | None = None
    sequence: int = 0
    models: dict[str, ReportedModel] = {}
    warnings: tuple[str, ...] = ()
    trust: Trusted | None = None
    renewal: Renewal | None = None


class Changes(Message, frozen=True, kw_only=True):
    """Device to controller, on the topic of reports: the changes since its last report.

    Without any changes it is a heartbeat.

    Attributes:
        at: When it was said, by the device's clock.
        changes: Changed fields of `Reported`, but for `at` and `models`.
        models: By name: changed fields of `ReportedModel`.
    """

    at: Moment
    changes: dict[str, msgspec.Raw] = {}
    models: dict[str, dict[str, msgspec.Raw]] = {}


class NeedFile(msgspec.Struct, frozen=True, kw_only=True):
    """The chunks of one file that a device still lacks.

    Attributes:
        sha256: The file.
        chunk_count: Chunks of the file, as the device counts them.
        missing: zlib-compressed bitmap, bit i of byte i // 8 (least significant bit first)
            set when chunk i is missing; base64 in JSON.
        latest: The chunk of it that came last, whether it was lacking or not; None when none came
            since the device asked first. From `chunk_count` on it is that coded message
            (`edgepack.wire.coded`) which has the rest for its number.
        takes_coded: Whether the device hears coded messages of this file.
    """

    sha256: str
    chunk_count: int
    missing: bytes
    latest: Count | None = None
    takes_coded: bool = False


class Need(Message, frozen=True, kw_only=True):
    """Device to controller: what it still lacks of the bundle.

    Attributes:
        digest: Root digest of the bundle.
        files: Files with missing chunks; empty when nothing is missing.
        round: How often it asked for this bundle, from 1.
        received: Chunks that came since the last need, and `lost` that were awaited and did not.
        lost: See `received`.
        under_way: Whether chunks come, so that what was sent later than all that came may be on its
            way still. Without it nothing has come for a while.
        bytes_per_s: What the device may be sent a second, by its settings; it is then served by
            itself. 0 means no limit.
    """

    digest: str
    files: tuple[NeedFile, ...]
    round: Count = 1
    received: Count = 0
    lost: Count = 0
    under_way: bool = False
    bytes_per_s: Count = 0


class Histogram(msgspec.Struct, frozen=True, kw_only=True):
    """Latencies in logarithmic buckets; see `edgepack.wire.histogram` for making and merging.

    Attributes:
        growth: Ratio of a bucket's upper bound to its lower bound.
        counts: Inferences by bucket index i: latency_ms in (growth**(i-1), growth**i].
        count: All inferences.
        sum_ms, min_ms, max_ms: Exact sum and extremes.
    """

    growth: float
    counts: dict[int, int]
    count: int
    sum_ms: float
    min_ms: float
    max_ms: float


class Telemetry(Message, frozen=True, kw_only=True):
    """Device to controller: latency of real inferences in one window of time.

    Attributes:
        digest, variant, provider: What ran.
        window_start: Start of the window.
        window_s: Its length, seconds.
        latency: Histogram of real inferences.
        failures: Inferences that raised.
        memory_bytes: Memory of a process that serves the model, of the largest where there are
            several, bytes; None when not known.
        temperature_c: The device's highest temperature, degrees Celsius; None when not known.
        drift: The greatest difference of a feature from the build's samples, standard deviations;
            None if it is not measured.
        shadow_count: Inferences that a second model computed, too, to compare.
        shadow_agreed: Shadow inferences in which both releases agreed.
        not_finite: Inferences with NaN or infinity in an output that has none in the golden
            samples, although all inputs were finite; they are in `latency`, too.
        bad_inputs: The same with NaN or infinity in an input.
        bad_input: The last such input; "" for none.
        energy_j: The device's energy in the window, joules, in proportion to the time of the
            release's inferences; None if a part of the window is not known.
        throttled_s: Time in which the device slowed down for heat, seconds.
    """

    digest: Word
    variant: Word
    provider: Word
    window_start: Moment
    window_s: Span
    latency: Histogram
    failures: Count = 0
    memory_bytes: Count | None = None
    temperature_c: Annotated[float, msgspec.Meta(ge=-274, le=1000)] | None = None
    drift: Deviations | None = None
    shadow_count: Count = 0
    shadow_agreed: Count = 0
    not_finite: Count = 0
    bad_inputs: Count = 0
    bad_input: Word = ""
    energy_j: Annotated[float, msgspec.Meta(ge=0, le=1e12)] | None = None
    throttled_s: Span = 0.0

    @property
    def metered(self) -> int:
        """Inferences that `energy_j` stands for."""
        return 0 if self.energy_j is None else self.latency.count + self.failures


class Event(Message, frozen=True, kw_only=True):
    """Device to controller: one life cycle transition, or a refusal worth knowing.

    Attributes:
        at: When, by the device's clock.
        kind: `transition`, `refused`, `hook`, `wait`, `warning` or `watch`; a newer device may know
            more.
        model: The model that it is about; "" when it is about the device.
        bundle: The bundle's title.
        from_state, to_state: Of a transition, or of the watch.
        because: Why.
        rollout, sequence: Of the order that it speaks of.
    """

    at: Moment
    kind: Word
    model: Word = ""
    bundle: Word
    from_state: Word = ""
    to_state: Word = ""
    because: str = ""
    rollout: Word = ""
    sequence: int = 0


class Batch(Message, frozen=True, kw_only=True):
    """Batch of one topic's messages, published at one time.

    Attributes:
        tenant, device, kind: Where it belongs; the same as in its topic.
        boot: Random id of the device's process.
        session: The word that the controller gave to this process; "" before it gave one.
        sequence: Number of the first message; the messages of this kind are counted from 1.
        journal: The device's journal in which windows of telemetry are counted; "" if the session
            counts.
        messages: Encoded messages of that kind; one if the kind is `reported`.
        signing_request: A certificate request of the device's key (PEM), sent without a session by
            a device that has no certificate; else "".
    """

    tenant: Word
    device: Word
    kind: Word
    boot: Word
    session: Word = ""
    sequence: Count
    journal: Word = ""
    messages: Annotated[tuple[msgspec.Raw, ...], msgspec.Meta(max_length=MAX_BATCH)]
    signing_request: Pem = ""


class Session(Message, frozen=True, kw_only=True):
    """Controller to one device: the session of its batches from now on.

    Attributes:
        boot: The process that it is for.
        session: The word.
    """

    boot: Word
    session: Word


class Received(Message, frozen=True, kw_only=True):
    """Controller to one device: the telemetry that the fleet has.

    Attributes:
        journal: The device's journal.
        until: Number of a window; the fleet has this window and all before.
        newest: Highest number of a window that the fleet has.
    """

    journal: Word
    until: Count
    newest: Count


class Piece(Message, frozen=True, kw_only=True):
    """Device to controller: a piece of an encrypted sample; pieces come in order.

    Attributes:
        request, model: The request that asked for the sample, and its model.
        sample: SHA-256 of the whole encrypted sample.
        reason: Reason of the choice, see `CAPTURE_REASONS`.
        size_bytes: Size of the whole encrypted sample.
        index: Number of the piece, from 0.
        content: `PIECE_BYTES` of the sample, or the rest.
    """

    request: Token
    model: Word
    sample: Digest
    reason: Word
    size_bytes: Annotated[int, msgspec.Meta(ge=1, le=MAX_SAMPLE_BYTES)]
    index: Annotated[int, msgspec.Meta(ge=0, le=MAX_SAMPLE_BYTES // PIECE_BYTES)]
    content: Annotated[bytes, msgspec.Meta(min_length=1, max_length=PIECE_BYTES)]


class Taken(Message, frozen=True, kw_only=True):
    """Controller to one device: the pieces of samples that the fleet has.

    Attributes:
        pieces: By sample: number of pieces, from the first.
        refused: By sample: why the fleet does not take the sample; the device deletes the sample.
    """

    pieces: dict[Digest, Count] = {}
    refused: dict[Digest, Word] = {}


class LogLines(Message, frozen=True, kw_only=True):
    """Device to controller: the last lines of the agent's log, without secrets.

    Attributes:
        request: The request that asked for the lines.
        because: Reason for a refusal; "" without a refusal.
        lines: The lines, the newest last.
    """

    request: Token
    because: Word = ""
    lines: Annotated[tuple[LogLine, ...], msgspec.Meta(max_length=MAX_LOG_LINES)] = ()


M = TypeVar("M", bound=Message)


def encode(message: Message) -> bytes:
    """Return JSON bytes of a message."""
    return msgspec.json.encode(message)


def decode(payload: bytes, kind: type[M]) -> M:
    """Read a message.

    Raises:
        TransferError: The bytes are not JSON, do not fit the type, or are of a newer major version.
    """
    try:
        # Most messages are of this very version: they are decoded once.
        message = decode_json(payload, kind)
        if message.v == WIRE_VERSION.major:
            return message
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass  # A newer one need not fit; what is wrong with it is found below.
    title = kind.__name__
    form = Format(f"{title} message", kind, WIRE_VERSION)
    try:
        return form.decode(payload).value
    except NewerVersionError as error:
        raise TransferError(error.problem, remedy=error.remedy) from error
    except ValueError as error:
        raise TransferError(f"malformed {title} message: {error}") from error

"""Reports of a device: what it is, and the state of each of its models."""

import math
from typing import Annotated

import msgspec

from edgepack.wire.messages import (
    Count,
    Deviations,
    Message,
    Moment,
    Pem,
    Word,
)
from edgepack.wire.orders import (
    BundleRef,
)


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
    """Result of preparing the golden pictures or sounds on a device.

    Attributes:
        right: Whether the bits are those of the build, or the answers are right; None if the
            device cannot prepare these.
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

    @property
    def words(self) -> str:
        """The numbers, in words."""
        return (
            f"{self.first_token_ms:.3g} ms to the first token after {self.prompt_tokens}, "
            f"then {self.tokens_per_s:.3g} tokens a second"
        )

    def text_ms(self, tokens: int) -> float:
        """Return the time of a text of so many tokens after the prompt, milliseconds."""
        further_ms = 1000 / self.tokens_per_s if self.tokens_per_s > 0 else math.inf
        return self.first_token_ms + (tokens - 1) * further_ms


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

    @property
    def inference_ms(self) -> float | None:
        """Milliseconds of an inference as real inferences count: of texts, a further token."""
        paces = self.texts.paces if self.texts else ()
        return paces[0].text_ms(2) - paces[0].text_ms(1) if paces else self.latency_ms


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
    models: dict[str, ReportedModel] = msgspec.field(default_factory=dict)
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
    changes: dict[str, msgspec.Raw] = msgspec.field(default_factory=dict)
    models: dict[str, dict[str, msgspec.Raw]] = msgspec.field(default_factory=dict)

"""The agent's settings: a TOML file, read once at the start."""

import codecs
import ipaddress
from pathlib import Path
from typing import Annotated, Any, get_args

import msgspec

from edgepack.bandwidth import parse_bandwidth
from edgepack.bundle.pkcs11_uri import is_uri
from edgepack.decoding import convert_value, decode_toml
from edgepack.errors import DeviceError, EdgepackError, parse_problem
from edgepack.metrics.settings import UNIX, OtlpConfig, read_address
from edgepack.toml_errors import describe_type_error
from edgepack.versions import Version, version_of
from edgepack.wire import topics

SETTINGS = Version(1, 0)
"""Version of the settings' form: `v` and, if a newer edgepack added keys, `minor`."""


class BrokerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the connection to the broker.

    Attributes:
        url: `mqtt://host:port` or `mqtts://host:port`; `ws://host/path` or `wss://host/path` where
            only the web's ports are open. Further nodes of the broker follow after commas:
            `mqtts://one:8883,two:8883`.
        proxy: URL of an HTTP proxy that leads to the broker; "direct" for none; "" asks the
            environment, for `ws://` and `wss://` alone.
        ca_file, cert_file, key_file: PEM files for TLS and the device's own certificate.
        username, password_file: For brokers with passwords; the file holds a single line.
        keepalive_s: MQTT keepalive, seconds.
    """

    url: str
    proxy: str = ""
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    username: str = ""
    password_file: str = ""
    keepalive_s: Annotated[int, msgspec.Meta(ge=5, le=3600)] = 60


class IdentityConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The key with which this device signs its reports, and its certificate.

    Enrolment writes both. The broker may be shown the same certificate, or another.

    Attributes:
        cert_file: PEM file of the certificate that the fleet issued for the key.
        key_file: PEM file of the private key (ECDSA P-256), a file with a PKCS #11 URI, or that
            URI; "" uses the broker's key, if the settings name a key for the broker.
    """

    cert_file: str = ""
    key_file: str = ""


class TrustConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of trust: keys of the accepted signers.

    Attributes:
        keys: PEM files of public keys; at least one key must have signed a bundle.
        root: File of the fleet's TUF root metadata; with a root, the device installs only bundles
            that the fleet's director has signed for this device and the image repository lists. ""
            is for devices set up before fleets had metadata.
        metadata: URL of the fleet's TUF metadata, fetched if the broker does not deliver the
            metadata; "" uses the broker alone.
        allow_degraded_unsafe: Accept variants with gates that were overridden at build time.
    """

    keys: tuple[str, ...]
    root: str = ""
    metadata: str = ""
    allow_degraded_unsafe: bool = False


class ProviderConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the execution providers that may be used.

    Attributes:
        wanted: The provider this device was bought for; another choice is reported as fallback.
        allow: Allowed providers; empty allows every provider.
        allow_simulator: Let a simulated provider be a candidate (build hosts and tests).
        threads: Threads within an operator; 0 leaves the number to ONNX Runtime.
    """

    wanted: str = ""
    allow: tuple[str, ...] = ()
    allow_simulator: bool = False
    threads: int = 0


class ProbeConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of probes.

    Attributes:
        timeout_s: Time limit of a candidate, loading included.
        runs: Timed runs after a warm-up; fewer if a run takes long.
        memory_bytes: Memory limit of a probe; 0 means three quarters of the device's memory.
    """

    timeout_s: float = 120.0
    runs: int = 20
    memory_bytes: int = 0


class HookConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Firmware hooks of this device.

    Attributes:
        folder: Holds `<stage>.<before|after>.d/` folders with executables; "" means none.
        timeout_s: Time limit of a hook.
        from_bundles: Whether hooks that come with a bundle run.
        user: Name of the user that runs hooks from bundles; required with `from_bundles`.
    """

    folder: str = ""
    timeout_s: float = 60.0
    from_bundles: bool = False
    user: str = ""


class FirmwareConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Firmware that a release may change, through the device's installer.

    Attributes:
        hook: Executable that runs the steps of the contract for firmware hooks; "" means that no
            release changes the firmware.
        installer: Kind of artefacts that the hook installs, e.g. `rauc`; required with `hook`.
        compatible: Kind of board; "" takes only artefacts that fit every board.
        timeout_s: Time limit of a long step, such as an installation.
        reboot_s: Time that the device may take to shut down after a requested restart.
        boot_id_file: File whose content differs after each start of the device.
    """

    hook: str = ""
    installer: str = ""
    compatible: str = ""
    timeout_s: Annotated[float, msgspec.Meta(ge=1, le=24 * 3600)] = 1800.0
    reboot_s: Annotated[float, msgspec.Meta(ge=1, le=24 * 3600)] = 300.0
    boot_id_file: str = "/proc/sys/kernel/random/boot_id"


class DecryptionConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of decryption: the key that opens encrypted bundles.

    Attributes:
        key_file: PEM file of the private key that opens bundles; "" uses the broker's key.
    """

    key_file: str = ""


class LimitConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits on the resources of the agent.

    Attributes:
        disk_reserve_bytes: Free space that updates must leave.
        memory_bytes: Limit of the weights of all models together, including a new release next to
            the serving release; 0 sets no limit.
        check_interval_s: Seconds between complete reads of the serving release's files, to find
            damage by the disk; 0 means never.
        max_restarts: Restarts while the release or a hook of an update is at work, before the
            update is given up.
        bandwidth: Network limit of bundles, optionally by the hour of the device's clock
            (`edgepack.bandwidth`); "" sets no limit. A device with a limit receives individually
            sent chunks, and no broadcast chunks.
    """

    disk_reserve_bytes: int = 64 * 1024 * 1024
    memory_bytes: int = 0
    check_interval_s: float = 24 * 3600.0
    max_restarts: int = 10
    bandwidth: str = ""


class SourceConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A web server that has bundles; the broker delivers missing chunks.

    Attributes:
        url: `https://` or `http://` URL with placeholders in braces: `{name}`, `{version}` and
            `{digest}` of the bundle, `{path}` and `{sha256}` of a file of the bundle. Without
            `{path}` and `{sha256}`, the URL leads to an `.edgepack` archive. Or
            `oci://host/repository` of an OCI registry.
        ca_file, cert_file, key_file: PEM files for TLS and a client certificate.
        proxy: URL of an HTTP proxy; "direct" for none; "" asks the environment.
        token_file: File with a single line that is sent as a bearer token, by https alone.
    """

    url: str
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    proxy: str = ""
    token_file: str = ""


class TransferConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the sources of chunks.

    Attributes:
        sources: Sources in the order of requests; the broker comes last.
    """

    sources: tuple[SourceConfig, ...] = ()


class CaptureConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Inputs kept on the device for a later build; inputs may be private.

    Attributes:
        samples: Plain samples of each model, at most; 0 keeps none. The device never sends them.
        max_bytes: Samples of each model, at most: of the plain samples, and again of the encrypted
            samples that wait for their upload.
        upload: Whether the fleet may request samples. The device encrypts each sample to the
            fleet's key before the sample is stored.
        upload_bytes_per_day: Bytes of samples that the device sends on a day (UTC), at most.
        recipient: PEM file of the only public key to which the device encrypts samples; "" takes
            the key of a signed request.
        texts: Names of models that write texts, or make vectors of texts, whose inputs may be kept
            like those of other models: they are texts.
    """

    samples: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 0
    max_bytes: Annotated[int, msgspec.Meta(ge=0)] = 64 * 1024 * 1024
    upload: bool = False
    upload_bytes_per_day: Annotated[int, msgspec.Meta(ge=0)] = 32 * 1024 * 1024
    recipient: str = ""
    texts: tuple[str, ...] = ()


class LogsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Log lines of the agent for the fleet.

    Attributes:
        send: Whether the fleet may request the last lines of the agent's log. The agent removes
            passwords, tokens, PINs, keys and credentials of URLs.
    """

    send: bool = True


class ShadowConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Real inferences that a second release computes, too: the previous release during a soak, and
    the next release before a switch if the rollout asks for that.

    Shadow mode needs a second copy of a model in memory. During a soak it is off by default.

    Attributes:
        share: Share of inferences to repeat; 0 switches shadow mode off during a soak, and repeats
            any inference before a switch.
        busy_share: Maximum share of time with a running shadow inference.
        memory_bytes: Memory limit of the shadow process; 0 means a quarter of the device's memory.
        disagree_max: Share of real inferences in which a soaking release may give another answer
            than the previous one. The device rolls a release back if the share is significantly
            greater; 1 leaves the decision to the fleet.
        spacing_s: Seconds between two inferences that count as independent; 0 estimates three
            correlation times of the inputs, and takes 15 s while these are unknown.
    """

    share: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    busy_share: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.02
    memory_bytes: Annotated[int, msgspec.Meta(ge=0)] = 0
    disagree_max: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.02
    spacing_s: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 0.0


class WatchConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the watch over the serving release, during its soak and after the commit.

    Attributes:
        slowdown: Tolerated ratio of latencies to the previous release, and after the commit to the
            release's own past; a higher threshold in a rollout's gate `p95` raises the limit of
            the soak. 0 leaves latency to the fleet.
        interval_s: Length of an interval of latencies, seconds: five in a row must be too slow.
        look_s: Seconds between two looks at the measurements.
        lasting_s: Seconds for which inferences must go wrong before the device acts, at least.
        hung_s: Seconds without a heartbeat, or of an inference, after which a process hangs; more
            for models that are slow in the device's own probe, and times the load of each core.
        calm_s: Seconds without a symptom after which a degraded release counts as well again.
        max_acts: Actions without a new order or a calm day in between; then the device reports.
    """

    slowdown: Annotated[float, msgspec.Meta(ge=0, le=1000)] = 2.0
    interval_s: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 60.0
    look_s: Annotated[float, msgspec.Meta(gt=0, le=60)] = 5.0
    lasting_s: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 15.0
    hung_s: Annotated[float, msgspec.Meta(ge=2, le=3600)] = 30.0
    calm_s: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 60.0
    max_acts: Annotated[int, msgspec.Meta(ge=0, le=100)] = 8


class TelemetryConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of telemetry, which determine the bytes sent and written.

    Attributes:
        heartbeat_s: Seconds between reports without changes.
        interval_s: Seconds between windows of telemetry.
        update_interval_s: The same while an update of a model is under way.
        runtime_dir: Folder in memory (tmpfs) through which applications hand over their counts; ""
            takes the first that the agent may write of `$RUNTIME_DIRECTORY`,
            `$XDG_RUNTIME_DIR`, `/run` and `/dev/shm`.
        journal_bytes: Bound of the windows that wait for the fleet; windows merge beyond.
        drift_window_s: Seconds over which features of inferences are averaged to decide changes.
        sysfs_dir: Folder of the kernel's files that tell energy and power.
    """

    heartbeat_s: Annotated[float, msgspec.Meta(ge=1, le=24 * 3600)] = 600.0
    interval_s: Annotated[float, msgspec.Meta(ge=0.1, le=3600)] = 300.0
    update_interval_s: Annotated[float, msgspec.Meta(ge=0.1, le=3600)] = 30.0
    runtime_dir: str = ""
    journal_bytes: Annotated[int, msgspec.Meta(ge=4096, le=4 * 1024 * 1024)] = 64 * 1024
    drift_window_s: Annotated[float, msgspec.Meta(ge=0.1, le=24 * 3600)] = 600.0
    sysfs_dir: str = "/sys"


class VerificationConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Repeated runs of the golden samples on the serving provider.

    Attributes:
        interval_s: Seconds between two rounds, at least; a longer pause follows long rounds. 0
            means never.
        share: Share of the time that the runs take, at most.
        hot_c: Temperature above which the agent runs the samples once more, degrees Celsius.
    """

    interval_s: Annotated[float, msgspec.Meta(ge=0, le=7 * 24 * 3600)] = 1800.0
    share: Annotated[float, msgspec.Meta(ge=1e-5, le=0.05)] = 0.001
    hot_c: Annotated[float, msgspec.Meta(ge=-60, le=200)] = 80.0


class MetricsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the device's own `/metrics`.

    Attributes:
        listen: Port on loopback, `address:port`, or `unix:` and the path of a socket; "" answers
            nothing.
    """

    listen: str = ""


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the model server, which serves this device's models to programs in any language.

    Attributes:
        enabled: Whether the agent runs the server.
        mode: Permission bits of the unix socket, octal; the socket has the state folder's group.
        listen: Port on loopback, or `address:port` of loopback, besides the unix socket; "" for
            none. Every user of the device may then use the models.
        grpc: Port on loopback, or `address:port` of loopback, for gRPC; "" for none. It needs the
            extra `grpc`.
        origins: Origins of web pages that may use the loopback port, such as `http://localhost:8080`.
        parallel: Inferences of a model that run at the same time, at most.
        queue: Requests for a model that run or wait, at most; further requests get status 429.
        text_tokens: Tokens of a text with its prompt, at most; 0 leaves the model's context.
        body_bytes: Length of a request, at most.
        memory_bytes: Bytes of all requests and responses in memory, at most.
        connections: Open connections, at most; idle and stalled connections make room for new ones.
    """

    enabled: bool = False
    mode: Annotated[str, msgspec.Meta(pattern="^0?[0-7]{3}$")] = "660"
    listen: str = ""
    grpc: str = ""
    origins: tuple[str, ...] = ()
    parallel: Annotated[int, msgspec.Meta(ge=1, le=64)] = 2
    queue: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 64
    text_tokens: Annotated[int, msgspec.Meta(ge=0, le=2**24)] = 0
    body_bytes: Annotated[int, msgspec.Meta(ge=4096, le=1024 * 1024 * 1024)] = 64 * 1024 * 1024
    memory_bytes: Annotated[int, msgspec.Meta(ge=1024 * 1024)] = 256 * 1024 * 1024
    connections: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 512


class AgentConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of an agent.

    Attributes:
        v: Version of this file's form (`edgepack.versions`).
        device: Device id: MQTT user name and client id, the certificate's common name.
        tenant: Tenant of the fleet.
        state_dir: Folder for slots, and the journals and pointers of the models.
    """

    v: int = SETTINGS.major
    device: str
    tenant: str = "default"
    state_dir: str
    broker: BrokerConfig | None = None
    identity: IdentityConfig = IdentityConfig()
    trust: TrustConfig
    providers: ProviderConfig = ProviderConfig()
    probe: ProbeConfig = ProbeConfig()
    hooks: HookConfig = HookConfig()
    firmware: FirmwareConfig = FirmwareConfig()
    limits: LimitConfig = LimitConfig()
    decryption: DecryptionConfig = DecryptionConfig()
    transfer: TransferConfig = TransferConfig()
    capture: CaptureConfig = CaptureConfig()
    logs: LogsConfig = LogsConfig()
    shadow: ShadowConfig = ShadowConfig()
    verification: VerificationConfig = VerificationConfig()
    watch: WatchConfig = WatchConfig()
    telemetry: TelemetryConfig = TelemetryConfig()
    metrics: MetricsConfig = MetricsConfig()
    server: ServerConfig = ServerConfig()
    otlp: OtlpConfig = OtlpConfig()

    @property
    def signing_key(self) -> str:
        """Path or URI of the private key that signs reports; "" if the settings name none."""
        return self.identity.key_file or (self.broker.key_file if self.broker else "")

    @property
    def signing_certificate(self) -> str:
        """Path of the certificate of `signing_key`; "" if the settings name none."""
        if self.identity.key_file:
            return self.identity.cert_file
        return self.broker.cert_file if self.broker else ""

    @property
    def decryption_key(self) -> str:
        """Path of the private key that opens encrypted bundles; "" where there is none."""
        named = self.decryption.key_file or self.signing_key
        return "" if is_uri(named) else named


def read_config(path: Path) -> AgentConfig:
    """Read and check a settings file; relative paths are relative to the file's folder.

    Raises:
        DeviceError: The file is missing, no TOML, or has an unknown or ill-typed key.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DeviceError(
            f"cannot read the agent's settings: {error.strerror}",
            found_in=str(path),
            remedy="edgepack fleet enroll DEVICE writes one, or name it with --config",
        ) from error
    try:
        settings = decode_toml(content.removeprefix(codecs.BOM_UTF8))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DeviceError(
            f"the agent's settings are not valid TOML: {parse_problem(error)}",
            found_in=str(path),
            remedy="repair it; or name the agent.toml of edgepack fleet enroll with --config",
        ) from error
    settings = _of_this_version(settings, path)
    try:
        config = convert_value(settings, AgentConfig)
    except msgspec.ValidationError as error:
        found = describe_type_error(error, settings, AgentConfig)
        place = f"{path}, {found.place}" if found.place else str(path)
        raise DeviceError(found.problem, found_in=place, remedy=found.remedy) from error
    try:
        topics.check_name(config.device, "device id")
        topics.check_name(config.tenant, "tenant")
    except ValueError as error:
        raise DeviceError(str(error), found_in=str(path)) from error
    try:
        parse_bandwidth(config.limits.bandwidth)
    except EdgepackError as error:
        place = f"{path}, limits.bandwidth"
        raise DeviceError(error.problem, found_in=place, remedy=error.remedy) from error
    _check_server(config.server, path)
    return _anchor(config, path.resolve().parent)


def _check_server(server: ServerConfig, path: Path) -> None:
    """Check that the model server's addresses are of loopback: the server does not know its
    clients.

    Raises:
        DeviceError: An address is no address, or other machines can reach the address.
    """
    for key, text in (("listen", server.listen), ("grpc", server.grpc)):
        try:
            address = read_address(text or "0")
            is_inside = not address.path and ipaddress.ip_address(address.host).is_loopback
        except ValueError:
            is_inside = False
        if not is_inside:
            raise DeviceError(
                f"the model server listens on loopback alone, not on {text!a:.100}",
                found_in=f"{path}, server.{key}",
                remedy=f'{key} = "8000"; a proxy with authentication can lead there from outside',
            )


def _of_this_version(settings: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return settings without the keys that only a newer minor version has.

    Raises:
        DeviceError: The settings are of a newer major version, or state no version.
    """
    try:
        found = version_of(settings)
    except ValueError as error:
        raise DeviceError(str(error), found_in=f"{path}, v") from error
    if found.major > SETTINGS.major:
        raise DeviceError(
            f"the agent's settings are of version {found}, this edgepack reads {SETTINGS}",
            found_in=str(path),
            remedy="update edgepack on this device",
        )
    if found <= SETTINGS:
        return {key: value for key, value in settings.items() if key != "minor"}
    return _known_keys(settings, AgentConfig)


def _known_keys(settings: dict[str, Any], kind: Any) -> dict[str, Any]:
    known = {}
    for field in msgspec.structs.fields(kind):
        if field.encode_name in settings:
            value = settings[field.encode_name]
            section = next(
                (
                    one
                    for one in (field.type, *get_args(field.type))
                    if hasattr(one, "__struct_fields__")
                ),
                None,
            )
            is_section = section is not None and isinstance(value, dict)
            known[field.encode_name] = _known_keys(value, section) if is_section else value
    return known


def _anchor(config: AgentConfig, folder: Path) -> AgentConfig:
    def at(value: str) -> str:
        return str(folder / value) if value else ""

    broker = config.broker
    if broker is not None:
        broker = msgspec.structs.replace(
            broker,
            ca_file=at(broker.ca_file),
            cert_file=at(broker.cert_file),
            key_file=at(broker.key_file),
            password_file=at(broker.password_file),
        )
    return msgspec.structs.replace(
        config,
        state_dir=at(config.state_dir),
        broker=broker,
        identity=IdentityConfig(
            cert_file=at(config.identity.cert_file),
            key_file=config.identity.key_file
            if is_uri(config.identity.key_file)
            else at(config.identity.key_file),
        ),
        trust=msgspec.structs.replace(
            config.trust,
            keys=tuple(at(k) for k in config.trust.keys),
            root=at(config.trust.root),
        ),
        telemetry=msgspec.structs.replace(
            config.telemetry,
            runtime_dir=at(config.telemetry.runtime_dir),
            sysfs_dir=at(config.telemetry.sysfs_dir),
        ),
        metrics=MetricsConfig(
            listen=UNIX + at(config.metrics.listen.removeprefix(UNIX))
            if config.metrics.listen.startswith(UNIX)
            else config.metrics.listen
        ),
        otlp=msgspec.structs.replace(
            config.otlp,
            headers_file=at(config.otlp.headers_file),
            ca_file=at(config.otlp.ca_file),
            cert_file=at(config.otlp.cert_file),
            key_file=at(config.otlp.key_file),
        ),
        hooks=msgspec.structs.replace(config.hooks, folder=at(config.hooks.folder)),
        capture=msgspec.structs.replace(config.capture, recipient=at(config.capture.recipient)),
        firmware=msgspec.structs.replace(
            config.firmware,
            hook=at(config.firmware.hook),
            boot_id_file=at(config.firmware.boot_id_file),
        ),
        decryption=DecryptionConfig(key_file=at(config.decryption.key_file)),
        transfer=msgspec.structs.replace(
            config.transfer,
            sources=tuple(
                msgspec.structs.replace(
                    source,
                    ca_file=at(source.ca_file),
                    cert_file=at(source.cert_file),
                    key_file=at(source.key_file),
                    token_file=at(source.token_file),
                )
                for source in config.transfer.sources
            ),
        ),
    )

"""Assembly of the program: the only place that connects the parts of the agent."""

import logging
import os
import random
import secrets
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from edgepack.agent.broker.connection import Connection
from edgepack.agent.broker.inbox import Inbox
from edgepack.agent.broker.link import BrokerLink, NoBroker
from edgepack.agent.broker.logs import RecentLog
from edgepack.agent.broker.samples import capture_settings
from edgepack.agent.broker.signing import make_signer
from edgepack.agent.cli.reloading import read_again
from edgepack.agent.cli.trusting import load_device_trust, load_trust, make_fetcher
from edgepack.agent.config import AgentConfig
from edgepack.agent.daemon.agent import Agent
from edgepack.agent.daemon.application_socket import ApplicationSocket
from edgepack.agent.daemon.local_orders import LocalOrders, OrdersLink
from edgepack.agent.daemon.metrics import DeviceMetrics
from edgepack.agent.daemon.model_server import ModelServer
from edgepack.agent.daemon.service_manager import ServiceManager
from edgepack.agent.daemon.signals import handle_signals
from edgepack.agent.enrolment.renewal import CertificateKeeper, make_keeper
from edgepack.agent.hooks.firmware import FirmwareHook
from edgepack.agent.hooks.process import GRACE_S
from edgepack.agent.hooks.runner import check_hook_folder, run_hooks
from edgepack.agent.hooks.strays import adopt_strays, end_strays
from edgepack.agent.hooks.users import find_bundle_user
from edgepack.agent.runtime.bases import find_base_of
from edgepack.agent.runtime.compatibility import find_unsupported
from edgepack.agent.runtime.facts_reader import FactsReader
from edgepack.agent.runtime.first_answers import FirstAnswersStore
from edgepack.agent.runtime.plain_files import remove_stale_plain_files
from edgepack.agent.runtime.probe import probe_variant, wrong_result
from edgepack.agent.runtime.verdicts import Verdicts, pillow_of, probe_cache_key
from edgepack.agent.runtime.verification import (
    FirstAnswers,
    VerificationRequest,
    Verified,
    verify_in_child,
)
from edgepack.agent.self_update.agent_installer import AgentInstaller
from edgepack.agent.self_update.agent_slots import find_agent_slots
from edgepack.agent.state.captured import switch_capture
from edgepack.agent.state.decryption_key import write_key_file
from edgepack.agent.state.holders import HolderWatch, open_holders
from edgepack.agent.state.slots import Slots
from edgepack.agent.state.uploads import Uploads, uploads_file
from edgepack.agent.state.verification_settings import VerificationSettings, write_verification
from edgepack.agent.telemetry.buffer import TelemetryBuffer
from edgepack.agent.telemetry.readings import highest_temperature_c
from edgepack.agent.update.dependencies import DISK_PATIENCE_S, AgentDependencies, Link, Tools
from edgepack.agent.update.models import Models
from edgepack.agent.update.work import InlineWorker, ThreadWorker, Worker
from edgepack.bundle.manifest import Variant
from edgepack.bundle.trust import TrustPolicy
from edgepack.errors import DeviceError, EdgepackError
from edgepack.halt import Halt
from edgepack.wire.reports import DeviceFacts, ProbeResult

log = logging.getLogger(__name__)

PROBE_SHARE = 0.75
"""Share of the memory of a device that a probe may take, unless its settings say."""
WORKER_STOP_S = GRACE_S + 0.5
"""How long a stopping agent waits for a probe or a hook that it told to end; with what it gives the
broker, it stays below `STOP_S`."""

FETCH_STOP_S = 0.5
"""The same for what is read from a source, which looks several times a second."""


def open_telemetry(config: AgentConfig) -> TelemetryBuffer:
    """Open the statistics of serving processes."""
    return TelemetryBuffer(
        Path(config.state_dir), interval_s=config.watch.interval_s, settings=config.telemetry
    )


def run_daemon(config: AgentConfig, path: Path, manager: ServiceManager) -> None:
    """Run the agent until a signal stops the loop.

    Args:
        config: Settings.
        path: The settings file, which a reload reads again.
        manager: The service manager.

    Raises:
        EdgepackError: The settings name an unusable object, or a fault ended the agent.
    """
    boot, inbox, stop = secrets.token_hex(8), Inbox(), threading.Event()
    telemetry = open_telemetry(config)
    metrics = DeviceMetrics(config, telemetry)
    adopt_strays()
    facts = FactsReader(config.providers)
    server = ModelServer(Path(config.state_dir), path if config.server.enabled else None)
    applications = ApplicationSocket(Path(config.state_dir))

    def tidy() -> None:
        with facts.lock, server.spared() as spared:  # Their children are no strays.
            end_strays(spared)

    worker = ThreadWorker(inbox.wake, tidy=tidy)
    fetch_worker = ThreadWorker(inbox.wake)
    broker = config.broker
    trust = load_device_trust(config) if broker is not None else None

    def reload(current: AgentConfig) -> tuple[AgentConfig, TrustPolicy] | None:
        if found := read_again(path, current, check_settings):
            facts.config = found[0].providers
            if trouble := _write_verification(found[0]):
                log.warning("%s", trouble)
        return found

    keeper: CertificateKeeper | None = None
    connection: Connection | NoBroker = NoBroker()
    if broker is not None:
        signer, rng = make_signer(config, boot), random.Random()
        connection = Connection(config, broker, inbox, boot=boot, signer=signer, rng=rng)
        identity = msgspec.structs.replace(
            broker, cert_file=config.signing_certificate, key_file=config.signing_key
        )
        keeper = make_keeper(identity, config.device, wall=time.time)
    orders = LocalOrders(Path(config.state_dir), inbox.wake)
    logging.getLogger().addHandler(recent_log := RecentLog())
    installer = make_agent_installer(
        path,
        is_connected=lambda: connection.is_connected,
        restart=lambda: os.kill(os.getpid(), signal.SIGTERM),
    )
    agent = Agent(
        config,
        inbox,
        connection,
        telemetry,
        lambda notify: assemble_models(
            config,
            OrdersLink(orders, BrokerLink(connection)),
            telemetry,
            notify,
            worker=worker,
            fetch_worker=fetch_worker,
            facts=facts,
            installer=installer,
        ),
        boot=boot,
        trust=trust,
        keeper=keeper,
        metrics=metrics,
        applications=applications,
        manager=manager,
        read_again=reload,
        local_orders=orders,
        installer=installer,
        recent_log=recent_log.last,
    )
    fetcher = make_fetcher(config, inbox, trust)
    handle_signals(stop, agent.reload, inbox, end_strays)
    orders.start()
    connection.start()
    metrics.start()
    server.start()
    applications.start()
    if fetcher is not None:
        fetcher.start()
    try:
        agent.run(stop)
    except Exception as error:
        agent.count_fault()  # An update that cannot go on is given up.
        log.exception("the agent stops")
        raise DeviceError(f"the agent stopped because of a fault: {error}") from error
    finally:
        orders.stop()
        server.begin_stop()
        if not all([fetch_worker.stop(FETCH_STOP_S), worker.stop(WORKER_STOP_S)]):
            log.warning("background work did not end in time")
        metrics.stop()
        if fetcher is not None:
            fetcher.stop()
        applications.stop()
        connection.stop()
        server.stop()


def assemble_models(
    config: AgentConfig,
    link: Link,
    telemetry: TelemetryBuffer,
    notify: Callable[[], None] = lambda: None,
    *,
    worker: Worker | None = None,
    fetch_worker: Worker | None = None,
    facts: FactsReader | None = None,
    installer: AgentInstaller | None = None,
) -> Models:
    """Make the models with all their dependencies on this device.

    Raises:
        EdgepackError: A key, a hook folder or a source is not usable.
    """
    state_dir = Path(config.state_dir)
    trust = check_settings(config)
    user = find_bundle_user(config.hooks.user) if config.hooks.from_bundles else None
    reader = facts or FactsReader(config.providers)
    firmware = open_firmware(config)

    def read_facts() -> DeviceFacts:
        found = reader.read()
        return msgspec.structs.replace(
            found,
            firmware=firmware.version if firmware else "",
            agent_version=installer.version if installer else found.agent_version,
        )

    verdicts = Verdicts(state_dir)
    first_answers = FirstAnswersStore(state_dir)
    tools = Tools(
        read_facts=read_facts,
        probe=lambda folder, variant, halt: _probe(
            folder, variant, deps.config, verdicts, read_facts(), halt
        ),
        run_hooks=lambda stage, when, folders, facts, halt: run_hooks(
            stage,
            when,
            folders,
            facts,
            deps.config.hooks.timeout_s,
            halt=halt,
            users={}
            if user is None
            else dict.fromkeys(set(folders) - {Path(deps.config.hooks.folder)}, user),
        ),
        collect=telemetry.collect,
        unsupported=find_unsupported,
        forget_verdicts=verdicts.forget,
        pace_of=telemetry.paces.of,
        drift_of=telemetry.drift.recent,
        heat=telemetry.heat.look,
        holders=HolderWatch(state_dir).look,
        verify=lambda folder, variant, halt: _verify(
            folder, variant, deps.config, first_answers, read_facts(), halt
        ),
        temperature_c=lambda: highest_temperature_c(Path(config.telemetry.sysfs_dir)),
        firmware=firmware,
        agent=installer,
    )
    remove_stale_plain_files()
    for trouble in (
        open_holders(state_dir),
        _write_verification(config),
        _switch_capture(config),
    ):
        if trouble:
            log.warning("%s", trouble)
    deps = AgentDependencies(
        config=config,
        trust=trust,
        slots=Slots(state_dir),
        tools=tools,
        link=link,
        worker=worker or InlineWorker(end_strays),
        fetch_worker=fetch_worker,
        prepare=lambda: write_key_file(state_dir, config.decryption_key),
        # A command has somebody who waits for it; an agent has time.
        disk_patience_s=DISK_PATIENCE_S if worker else 0.0,
    )
    return Models(deps, notify)


def make_agent_installer(
    path: Path, *, is_connected: Callable[[], bool] | None, restart: Callable[[], None]
) -> AgentInstaller | None:
    """Return the installer of releases of the agent; None if no launcher started this process.

    Args:
        path, is_connected, restart: See `AgentInstaller`.
    """
    slots = find_agent_slots()
    if slots is None:
        return None
    return AgentInstaller(slots, path, is_connected=is_connected, restart=restart)


def _write_verification(config: AgentConfig) -> str:
    """Apply the settings of repeated golden samples; return the reason for a failure."""
    verification = VerificationSettings(
        interval_s=config.verification.interval_s, share=config.verification.share
    )
    return write_verification(Path(config.state_dir), verification)


def _switch_capture(config: AgentConfig) -> str:
    """Apply the settings of capture and the fleet's requests; return the reason for a failure."""
    state_dir = Path(config.state_dir)
    try:
        uploads = uploads_file(state_dir).load() or Uploads()
    except OSError as error:
        return f"requests for samples cannot be read: {error.strerror}"
    return switch_capture(state_dir, capture_settings(config, uploads))


def open_firmware(config: AgentConfig) -> FirmwareHook | None:
    """Return the firmware hook of the settings with the running version; None without a hook.

    If the hook cannot run, the agent starts nevertheless: a new firmware that lacks the hook must
    not silence the device.

    Raises:
        DeviceError: The hook's kind of artefacts is not named.
    """
    settings = config.firmware
    if not settings.hook:
        return None
    if not settings.installer:
        raise DeviceError(
            "a firmware hook is set without its kind of artefacts",
            found_in="firmware.installer",
            remedy='installer = "rauc", or the name that bundles for this device use',
        )
    hook = FirmwareHook(
        Path(settings.hook),
        timeout_s=settings.timeout_s,
        boot_id_file=Path(settings.boot_id_file),
    )
    verdict = hook.run("running", {})
    if verdict.verdict != "go":
        log.error("the version of the firmware is not known: %s", verdict.because)
    return hook


def check_settings(config: AgentConfig) -> TrustPolicy:
    """Reject settings that could never be used on this device; return the accepted signers.

    Raises:
        EdgepackError: A key or a hook folder is not usable, or the URL of a source is invalid.
    """
    trust = load_trust(config)
    if config.hooks.folder:
        check_hook_folder(Path(config.hooks.folder))
    if config.transfer.sources:
        # Loaded where it is needed: urllib3 takes 0.06 s and 14 MB.
        from edgepack.agent.transfer.configured import check_source

        for source in config.transfer.sources:
            check_source(source)
    return trust


def _verify(
    folder: Path,
    variant: Variant,
    config: AgentConfig,
    first_answers: FirstAnswersStore,
    facts: DeviceFacts,
    halt: Halt,
) -> Verified:
    """Run the golden samples on the variant of a slot, against the device's own first answers."""
    threads = config.providers.threads
    most_bytes = config.probe.memory_bytes or int(PROBE_SHARE * facts.memory_bytes)
    limits = msgspec.structs.replace(config.probe, memory_bytes=most_bytes)

    try:
        base = find_base_of(folder)
    except EdgepackError as error:
        return Verified(trouble=error.problem)

    def run(first: FirstAnswers | None) -> Verified:
        request = VerificationRequest(
            bundle_folder=str(folder),
            variant=variant,
            timeout_s=limits.timeout_s,
            threads=threads,
            key_file=config.decryption_key,
            first=first,
            base=base,
        )
        return verify_in_child(request, limits, halt=halt)

    return first_answers.verify(probe_cache_key(folder.name, variant, facts, threads=threads), run)


def _probe(
    folder: Path,
    variant: Variant,
    config: AgentConfig,
    verdicts: Verdicts,
    facts: DeviceFacts,
    halt: Halt,
) -> ProbeResult:
    """Probe a variant of the bundle in a slot, unless an earlier verdict "right" still applies."""
    threads = config.providers.threads
    most_bytes = config.probe.memory_bytes or int(PROBE_SHARE * facts.memory_bytes)
    limits = msgspec.structs.replace(config.probe, memory_bytes=most_bytes)
    try:
        base = find_base_of(folder)
    except EdgepackError as error:
        return wrong_result(variant, error.problem)
    return verdicts.get_or_probe(
        probe_cache_key(folder.name, variant, facts, threads=threads, pillow=pillow_of(folder)),
        lambda: probe_variant(
            folder,
            variant,
            config=limits,
            threads=threads,
            key_file=config.decryption_key,
            base=base,
            halt=halt,
        ),
    )

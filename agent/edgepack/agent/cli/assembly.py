"""Puts the program together: the one place where the parts of the agent meet."""

import logging
import os
import random
import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from edgepack.agent.broker.connection import Connection
from edgepack.agent.broker.inbox import Inbox
from edgepack.agent.broker.link import BrokerLink
from edgepack.agent.config import AgentConfig, BrokerConfig, ProviderConfig
from edgepack.agent.daemon.agent import Agent
from edgepack.agent.daemon.signals import stop_on_signals
from edgepack.agent.enrolment.renewal import CertificateKeeper
from edgepack.agent.hooks.process import GRACE_S
from edgepack.agent.hooks.runner import check_hook_folder, run_hooks
from edgepack.agent.hooks.strays import adopt_strays, end_strays
from edgepack.agent.runtime.facts import read_device_facts
from edgepack.agent.runtime.plain_files import sweep_memory
from edgepack.agent.runtime.probe import probe_variant
from edgepack.agent.runtime.verdicts import Verdicts, circumstances_of
from edgepack.agent.state.decryption_key import write_key_file
from edgepack.agent.state.metadata_cache import MetadataCache
from edgepack.agent.state.slots import Slots
from edgepack.agent.state.state_file import read_regular
from edgepack.agent.telemetry.buffer import TelemetryBuffer
from edgepack.agent.transfer.configured import check_source
from edgepack.agent.update.dependencies import AgentDependencies, Link, Tools
from edgepack.agent.update.models import Models
from edgepack.agent.update.work import Bench, InlineBench, ThreadBench
from edgepack.bundle.keys import load_public_key
from edgepack.bundle.manifest import Variant
from edgepack.bundle.trust import TrustPolicy
from edgepack.errors import DeviceError, TrustError
from edgepack.halt import Halt
from edgepack.wire.messages import BundleRef, DeviceFacts, ProbeResult

if TYPE_CHECKING:
    from edgepack.agent.update.device_trust import DeviceTrust

log = logging.getLogger(__name__)

METADATA_FOLDER = "metadata"
"""Beside a bundle on a stick: the fleet's metadata."""
PROBE_SHARE = 0.75
"""Share of the memory of a device that a probe may take, unless its settings say."""
BENCH_STOP_S = GRACE_S + 0.5
"""How long a stopping agent waits for a probe or a hook that it told to end; with what it gives the
broker, it stays below `STOP_S`."""

FETCH_STOP_S = 0.5
"""The same for what is read from a source, which looks several times a second."""


def run_daemon(config: AgentConfig, broker: BrokerConfig) -> None:
    """Runs the agent until a signal ends it.

    Raises:
        EdgepackError: The settings name what is not usable, or a fault ended the agent.
    """
    check_providers(read_device_facts(config.providers), config.providers)
    boot, inbox, stop = secrets.token_hex(8), Inbox(), threading.Event()
    telemetry = TelemetryBuffer(Path(config.state_dir))
    adopt_strays()
    bench = ThreadBench(inbox.wake, tidy=end_strays)
    fetch_bench = ThreadBench(inbox.wake)
    trust = load_device_trust(config)
    connection = Connection(config, broker, inbox, boot=boot, rng=random.Random())
    agent = Agent(
        config,
        inbox,
        connection,
        telemetry,
        lambda notify: assemble_models(
            config,
            BrokerLink(connection),
            telemetry,
            notify,
            bench=bench,
            fetch_bench=fetch_bench,
        ),
        boot=boot,
        trust=trust,
        keeper=(
            CertificateKeeper(broker, config.device, wall=time.time) if broker.cert_file else None
        ),
    )
    stop_on_signals(stop, inbox, end_strays)
    connection.start()
    try:
        agent.run(stop)
    except Exception as error:
        # What restarts the agent counts: an update that cannot go on is given up.
        log.exception("the agent stops")
        raise DeviceError(f"the agent stopped because of a fault: {error}") from error
    finally:
        if not all([fetch_bench.stop(FETCH_STOP_S), bench.stop(BENCH_STOP_S)]):
            log.warning("what was done beside the loop did not end in time")
        connection.stop()


def check_providers(facts: DeviceFacts, config: ProviderConfig) -> None:
    """Refuses a device on which no model could run.

    Raises:
        DeviceError: No execution provider is there, or none that the settings allow.
    """
    usable = [one.name for one in facts.providers if one.available]
    if not usable:
        raise DeviceError(
            "no execution provider is installed, so no model could run here",
            found_in=facts.providers[0].because,
            remedy="install one of the extras cpu, qnn and openvino; edgepack-agent providers "
            "tells what is missing",
        )
    if config.allow and not set(usable) & set(config.allow):
        raise DeviceError(
            "the settings allow no execution provider that is installed here",
            found_in=f"providers.allow; installed: {', '.join(usable)}",
            remedy="leave providers.allow out, or install what it names",
        )


def assemble_models(
    config: AgentConfig,
    link: Link,
    telemetry: TelemetryBuffer,
    notify: Callable[[], None] = lambda: None,
    *,
    bench: Bench | None = None,
    fetch_bench: Bench | None = None,
) -> Models:
    """Makes the models with all that they need of this device.

    Raises:
        EdgepackError: A key, a hook folder or a source is not usable.
    """
    state_dir = Path(config.state_dir)
    if config.hooks.folder:
        check_hook_folder(Path(config.hooks.folder))
    for source in config.transfer.sources:
        check_source(source)
    verdicts = Verdicts(state_dir)
    tools = Tools(
        read_facts=lambda: read_device_facts(config.providers),
        probe=lambda folder, variant, halt: _probe(folder, variant, config, verdicts, halt),
        run_hooks=lambda stage, when, folders, facts, halt: run_hooks(
            stage, when, folders, facts, config.hooks.timeout_s, halt=halt
        ),
        collect=telemetry.collect,
    )
    write_key_file(state_dir, config.decryption_key)
    sweep_memory()
    deps = AgentDependencies(
        config=config,
        trust=load_trust(config),
        slots=Slots(state_dir),
        tools=tools,
        link=link,
        bench=bench or InlineBench(),
        fetch_bench=fetch_bench,
    )
    return Models(deps, notify)


def _probe(
    folder: Path, variant: Variant, config: AgentConfig, verdicts: Verdicts, halt: Halt
) -> ProbeResult:
    """Probes a variant of the bundle in a slot, unless it was right here and nothing changed."""
    threads = config.providers.threads
    facts = read_device_facts(config.providers)
    most_bytes = config.probe.memory_bytes or int(PROBE_SHARE * facts.memory_bytes)
    limits = msgspec.structs.replace(config.probe, memory_bytes=most_bytes)
    return verdicts.reach(
        circumstances_of(folder.name, variant, facts, threads=threads),
        lambda: probe_variant(
            folder,
            variant,
            config=limits,
            threads=threads,
            key_file=config.decryption_key,
            halt=halt,
        ),
    )


def load_device_trust(config: AgentConfig) -> "DeviceTrust | None":
    """What this device believes of its fleet; None when it was enrolled without a root.

    Raises:
        EdgepackError: The root cannot be read, or is none.
    """
    if not config.trust.root:
        return None
    # Loaded where it is needed: it takes 0.1 s and 5 MB.
    from edgepack.agent.update.device_trust import DeviceTrust

    path = Path(config.trust.root)
    try:
        root = read_regular(path)
    except OSError as error:
        raise DeviceError(
            f"the fleet's root cannot be read: {error.strerror}", found_in=str(path)
        ) from error
    if root is None:
        raise DeviceError(
            "there is no such root, which the settings trust",
            found_in=str(path),
            remedy="copy root.json there, as edgepack fleet enroll wrote it",
        )
    return DeviceTrust(
        root,
        MetadataCache(Path(config.state_dir)),
        tenant=config.tenant,
        device=config.device,
        arch=os.uname().machine,
        wall=time.time,
    )


def check_released(
    config: AgentConfig, bundle: BundleRef, metadata: str | None, *, beside: Path
) -> None:
    """Refuses a bundle that its fleet has not released, on a device that trusts a root.

    Args:
        config: The agent's settings.
        bundle: What shall be installed.
        metadata: Folder or URL of newer metadata; None looks for a folder beside the bundle.
        beside: Where the bundle lies.

    Raises:
        EdgepackError: The fleet's metadata does not list it, lacks, or has expired.
    """
    trust = load_device_trust(config)
    if trust is None:
        return
    from edgepack.trust.sources import fetch_nothing, source_of

    folder = beside.resolve().parent / METADATA_FOLDER
    place = metadata or (str(folder) if folder.is_dir() else None)
    try:
        trust.check_release(bundle, source_of(place) if place else fetch_nothing)
    except TrustError as error:
        raise TrustError(
            error.problem,
            found_in=error.found_in or place or "the metadata that this device has heard",
            remedy="edgepack export BUNDLE --with-metadata -o FOLDER, where the fleet is in reach",
        ) from error


def load_trust(config: AgentConfig) -> TrustPolicy:
    """Loads whose bundles are accepted.

    Raises:
        EdgepackError: The settings name none, or one cannot be read.
    """
    if not config.trust.keys:
        raise DeviceError(
            "the settings trust no key, so no bundle could be accepted",
            found_in="the agent's settings, trust.keys",
            remedy='keys = ["release.pub"] below [trust]',
        )
    for path in config.trust.keys:
        if not Path(path).exists():
            raise DeviceError(
                "there is no such key, which the settings trust",
                found_in=path,
                remedy="copy the public key of who signs the bundles there, or change trust.keys",
            )
    return TrustPolicy(
        keys=tuple(load_public_key(Path(path)) for path in config.trust.keys),
        allow_degraded_unsafe=config.trust.allow_degraded_unsafe,
    )

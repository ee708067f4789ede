"""The `edgepack-agent` command: run the agent, look at it, install without a network.

All wiring of the program is in `_wire`.
"""

import logging
import random
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import click
import msgspec

from edgepack.agent.broker.connection import Connection
from edgepack.agent.broker.inbox import Inbox
from edgepack.agent.broker.telemetry import TelemetryBox
from edgepack.agent.config import AgentConfig, BrokerConfig, read_config
from edgepack.agent.daemon import Agent, BrokerLink, new_boot, stop_on_signals
from edgepack.agent.hooks.runner import check_hook_folder, run_hooks
from edgepack.agent.local import LocalLink, local_offer
from edgepack.agent.local import install as install_locally
from edgepack.agent.lock import lock_state_dir
from edgepack.agent.pointer import read_pointer
from edgepack.agent.runtime.facts import read_device_facts
from edgepack.agent.runtime.probe import probe_variant
from edgepack.agent.runtime.verdicts import Verdicts, circumstances_of
from edgepack.agent.status import describe, read_status
from edgepack.agent.update.journal import JournalStore
from edgepack.agent.update.slots import Slots
from edgepack.agent.update.surroundings import Link, Surroundings, Tools
from edgepack.agent.update.updater import Updater
from edgepack.bundle.forms import open_bundle
from edgepack.bundle.keys import PublicKey, load_public_key
from edgepack.bundle.manifest import Variant
from edgepack.bundle.verify import verify_folder
from edgepack.errors import DeviceError, EdgepackError
from edgepack.wire.messages import DeviceFacts, ProbeResult

log = logging.getLogger(__name__)

DEFAULT_CONFIG = Path("/etc/edgepack/agent.toml")

_config_option = click.option(
    "--config",
    "config_path",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="EDGEPACK_AGENT_CONFIG",
    default=DEFAULT_CONFIG,
    show_default=True,
    show_envvar=True,
    help="The agent's settings.",
)
_json_option = click.option("--json", "as_json", is_flag=True, help="Write JSON.")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="edgepack")
def cli() -> None:
    """Run models on this device: take updates, prove them here, report how they do.

    \b
    Example:
      edgepack-agent run --config /etc/edgepack/agent.toml
    """


@cli.command()
@_config_option
@click.option("--verbose", is_flag=True, help="Log more than transitions.")
def run(config_path: Path, verbose: bool) -> None:
    """Run the agent until it is told to stop (SIGTERM or Ctrl-C).

    \b
    Example:
      edgepack-agent run --config /etc/edgepack/agent.toml
    """
    _log_to_stderr(verbose=verbose)
    config = read_config(config_path)
    if config.broker is None:
        raise DeviceError(
            "the settings name no broker",
            found_in=str(config_path),
            remedy='add a section [broker] with url = "mqtts://…"',
        )
    with lock_state_dir(Path(config.state_dir)):
        _run_daemon(config, config.broker)


@cli.command()
@click.argument("bundle", type=click.Path(path_type=Path, exists=True))
@_config_option
@click.option(
    "--soak",
    "soak_s",
    type=click.FloatRange(min=0),
    default=10.0,
    show_default=True,
    help="Seconds that the new model must serve without trouble before it is kept.",
)
@click.option("--rollback", is_flag=True, help="Go back to the release committed before.")
@_json_option
def install(bundle: Path, config_path: Path, soak_s: float, rollback: bool, as_json: bool) -> None:
    """Install BUNDLE, a folder or an archive, without a network.

    The way is that of a rollout: the same checks, the same probe, the same switch.

    \b
    Example:
      edgepack-agent install ocr-1.2.0.edgepack --config agent.toml --soak 0
    """
    _log_to_stderr(verbose=False)
    config = read_config(config_path)
    state_dir = Path(config.state_dir)
    with lock_state_dir(state_dir), open_bundle(bundle) as folder:
        verified = verify_folder(folder, _load_keys(config))
        link = LocalLink(verified)
        updater = _wire(config, link, TelemetryBox(state_dir), lambda: None)
        install_locally(updater, link, local_offer(verified, soak_s=soak_s, rollback=rollback))
    _show_status(state_dir, as_json=as_json)


@cli.command()
@_config_option
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="The agent's state folder, instead of settings.",
)
@_json_option
def status(config_path: Path, state_dir: Path | None, as_json: bool) -> None:
    """Show what serves and where the latest update is.

    \b
    Example:
      edgepack-agent status --state-dir /var/lib/edgepack --json
    """
    _show_status(state_dir or Path(read_config(config_path).state_dir), as_json=as_json)


@cli.command()
@_json_option
def providers(as_json: bool) -> None:
    """Show what this device really has: each execution provider, or why it is not there.

    \b
    Example:
      edgepack-agent providers
    """
    facts = read_device_facts()
    if as_json:
        click.echo(msgspec.json.encode(facts))
        return
    click.echo(_describe_facts(facts))


def main() -> None:
    """Runs the command; errors go to stderr, with exit code 1 (2 for wrong usage)."""
    try:
        cli(prog_name="edgepack-agent")
    except EdgepackError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(1)


def _run_daemon(config: AgentConfig, broker: BrokerConfig) -> None:
    boot, inbox, stop = new_boot(), Inbox(), threading.Event()
    telemetry = TelemetryBox(Path(config.state_dir))
    connection = Connection(config, broker, inbox, boot=boot, rng=random.Random())
    agent = Agent(
        config,
        inbox,
        connection,
        telemetry,
        lambda notify: _wire(config, BrokerLink(connection), telemetry, notify),
        boot=boot,
    )
    stop_on_signals(stop, inbox)
    connection.start()
    try:
        agent.run(stop)
    except Exception as error:
        # What restarts the agent counts: an update that cannot go on is given up.
        log.exception("the agent stops")
        raise DeviceError(f"the agent stopped because of a fault: {error}") from error
    finally:
        connection.stop()


def _wire(
    config: AgentConfig, link: Link, telemetry: TelemetryBox, notify: Callable[[], None]
) -> Updater:
    """Puts the program together.

    Raises:
        EdgepackError: A key, a hook folder or the pointer is not usable.
    """
    state_dir = Path(config.state_dir)
    if config.hooks.folder:
        check_hook_folder(Path(config.hooks.folder))
    verdicts = Verdicts(state_dir)
    tools = Tools(
        read_facts=lambda: read_device_facts(config.providers),
        probe=lambda folder, variant: _probe(folder, variant, config, verdicts),
        run_hooks=lambda stage, when, folders, facts: run_hooks(
            stage, when, folders, facts, config.hooks.timeout_s
        ),
        collect=telemetry.collect,
    )
    around = Surroundings(
        config=config,
        keys=_load_keys(config),
        store=JournalStore(state_dir, read_pointer(state_dir)),
        slots=Slots(state_dir),
        tools=tools,
        link=link,
    )
    return Updater(around, notify)


def _probe(folder: Path, variant: Variant, config: AgentConfig, verdicts: Verdicts) -> ProbeResult:
    """Probes a variant of the bundle in a slot, unless it was right here and nothing changed."""
    threads = config.providers.threads
    facts = read_device_facts(config.providers)
    return verdicts.reach(
        circumstances_of(folder.name, variant, facts, threads=threads),
        lambda: probe_variant(folder, variant, config=config.probe, threads=threads),
    )


def _load_keys(config: AgentConfig) -> tuple[PublicKey, ...]:
    if not config.trust.keys:
        raise DeviceError(
            "the settings trust no key, so no bundle could be accepted",
            found_in="trust.keys",
            remedy='keys = ["release.pub"] below [trust]',
        )
    return tuple(load_public_key(Path(key)) for key in config.trust.keys)


def _log_to_stderr(*, verbose: bool) -> None:
    level = logging.DEBUG if verbose else logging.INFO
    logging.basicConfig(
        level=level, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s"
    )


def _show_status(state_dir: Path, *, as_json: bool) -> None:
    found = read_status(state_dir)
    click.echo(msgspec.json.encode(found) if as_json else describe(found))


def _describe_facts(facts: DeviceFacts) -> str:
    cores = f"{facts.cpu_count} core{'s' * (facts.cpu_count != 1)}"
    lines = [
        f"device    {facts.arch}, {facts.cpu_model or 'unknown processor'}, {cores}",
        f"memory    {facts.memory_bytes / 2**30:.1f} GiB",
    ]
    if facts.soc:
        lines.append(f"soc       {facts.soc}")
    lines.append(f"class     {facts.hardware_class}")
    lines.append(f"runtime   {'ONNX Runtime ' + facts.runtime if facts.runtime else 'none'}")
    lines += [f"driver    {name} {version}" for name, version in sorted(facts.drivers.items())]
    lines.append("")
    width = max((len(provider.name) for provider in facts.providers), default=0)
    for provider in facts.providers:
        mark = "yes" if provider.available else "no "
        kind = f" [{', '.join(provider.devices)}]" if provider.devices else ""
        remedy = f"; what would bring it: {provider.brought_by}" if provider.brought_by else ""
        lines.append(f"  {mark}  {provider.name:<{width}}{kind}  {provider.because}{remedy}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()

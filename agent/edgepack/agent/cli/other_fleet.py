"""Modules for systems that manage a fleet already: each installs a bundle by its system's protocol.

An installation succeeds only after the release is proven and serves. A failed proof ends with an
exit code with which the system rolls its update back. A row of `SYSTEMS` is all that differs.
"""

import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import click
import msgspec

from edgepack.agent.cli.options import DEFAULT_CONFIG, config_option
from edgepack.errors import DeviceError, EdgepackError
from edgepack.setting_options import Number


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """Call of a module.

    Attributes:
        config_path: The agent's settings.
        soak_s: Seconds that a new release must serve before its commit.
        words: Arguments of the system.
    """

    config_path: Path
    soak_s: float
    words: tuple[str, ...]

    def word(self, index: int) -> str:
        """Return an argument; "" if missing."""
        return self.words[index] if index < len(self.words) else ""


class System(msgspec.Struct, frozen=True, kw_only=True):
    """Row of the table.

    Attributes:
        run: Acts on a call; returns the exit code.
        failed: Exit code of a failure.
        script: Content of the module's file; `{command}` is the command line of this program.
    """

    run: Callable[[Job], int]
    failed: int = 1
    script: str = '#!/bin/sh\nexec {command} -- "$@"\n'


def install(job: Job, bundle: Path, *, is_revertible: bool = False) -> None:
    """Install a bundle; prove the release before the end.

    Args:
        job: The call.
        bundle: The bundle.
        is_revertible: Whether the system decides later about commit or rollback.

    Raises:
        EdgepackError: The release was not installed; the previous release serves.
    """
    from edgepack.agent.cli.local_device import local_device
    from edgepack.agent.state.deployments import begin_deployment
    from edgepack.agent.update.journal import read_journal
    from edgepack.agent.update.local_install import LocalLink, local_offer

    with (
        local_device(job.config_path, bundle) as device,
        device.verified(bundle) as verified,
    ):
        name = verified.manifest.facts.name
        journal = read_journal(device.state_dir, name)
        committed = journal.committed if journal else None
        previous = journal.previous if journal else None
        # A system that deploys the release before again asks for a rollback.
        is_way_back = previous is not None and previous.digest == verified.digest
        offer = local_offer(verified, soak_s=job.soak_s, rollback=is_way_back)
        if is_revertible:
            before = committed.bundle if committed else None
            begin_deployment(device.state_dir, offer.bundle, before)
        device.carry_out(LocalLink(verified), name, offer)


def commit(job: Job) -> None:
    """Keep the installed releases: no later call rolls them back."""
    from edgepack.agent.cli.local_device import local_device
    from edgepack.agent.state.deployments import end_deployment, read_deployments

    with local_device(job.config_path) as device:
        for name in read_deployments(device.state_dir):
            end_deployment(device.state_dir, name)


def roll_back(job: Job) -> None:
    """Return to the releases that were committed before; end an installation under way.

    Raises:
        EdgepackError: A release does not serve again.
    """
    from edgepack.agent.cli.local_device import local_device
    from edgepack.agent.state.deployments import end_deployment, read_deployments
    from edgepack.agent.state.slots import slot_folder
    from edgepack.agent.update.journal import read_journal
    from edgepack.agent.update.local_install import LocalLink, removal_order, slot_offer

    with local_device(job.config_path) as device:
        for name, deployment in read_deployments(device.state_dir).items():
            before, journal = deployment.before, read_journal(device.state_dir, name)
            is_here = journal is not None and journal.state != "IDLE"
            if before is not None:
                offer = slot_offer(before, slot_folder(device.state_dir, before.digest))
                device.carry_out(LocalLink(), name, offer)
            elif is_here:
                device.carry_out(LocalLink(), name, removal_order())
            end_deployment(device.state_dir, name)


def run_mender(job: Job) -> int:
    """Act on a state of a Mender update module (version 3 of the protocol)."""
    state = job.word(0)
    if state in ("NeedsArtifactReboot", "SupportsRollback"):
        click.echo("No" if state == "NeedsArtifactReboot" else "Yes")
    elif state == "ArtifactInstall":
        install(job, _single_file(Path(job.word(1)) / "files"), is_revertible=True)
    elif state == "ArtifactCommit":
        commit(job)
    elif state == "ArtifactRollback":
        roll_back(job)
    return 0


def run_rauc(job: Job) -> int:
    """Act on a slot hook of RAUC: install the image instead of a copy into the slot."""
    import os

    if job.word(0) != "slot-install":
        return 0
    image = os.environ.get("RAUC_IMAGE_NAME", "")
    if not image:
        raise DeviceError("RAUC names no image", found_in="RAUC_IMAGE_NAME")
    install(job, Path(image))
    return 0


def run_file(job: Job) -> int:
    """Install the file that the first argument names."""
    install(job, Path(job.word(0)))
    return 0


def run_thin_edge(job: Job) -> int:
    """Act on a command of thin-edge.io's software management plug-ins."""
    from edgepack.agent.cli.local_device import local_device
    from edgepack.agent.config import read_config
    from edgepack.agent.update.local_install import LocalLink, removal
    from edgepack.agent.update.status import read_status

    command, name = job.word(0), job.word(1)
    options = dict(zip(job.words[2::2], job.words[3::2], strict=False))
    state_dir = Path(read_config(job.config_path).state_dir)
    active = {}
    if state_dir.is_dir():
        models = read_status(state_dir).models
        active = {key: one.active.bundle.version for key, one in models.items() if one.active}
    if command == "list":
        for key, version in active.items():
            click.echo(f"{key}\t{version}")
    elif command == "install" and name:
        if not (file := options.get("--file")):
            raise DeviceError(
                f"no bundle of '{name}' was given",
                remedy="give the software item a URL, from which thin-edge.io downloads the bundle",
            )
        install(job, Path(file))
        found = read_status(state_dir).models.get(name)
        version = found.active.bundle.version if found and found.active else ""
        if version != options.get("--module-version", version) or not version:
            raise DeviceError(
                f"the bundle is not '{name}' {options.get('--module-version', '')}".rstrip(),
                found_in=file,
                remedy="name the software item and its version as the bundle",
            )
    elif command == "remove" and name:
        if name in active and options.get("--module-version") in (None, "", active[name]):
            with local_device(job.config_path) as device:
                device.carry_out(LocalLink(), name, removal(device.state_dir, name))
    elif command not in ("prepare", "finalize"):
        return 1  # `update-list` is optional, other commands are unknown.
    return 0


SYSTEMS = {
    "mender": System(run=run_mender),
    "rauc": System(run=run_rauc),
    "swupdate": System(
        run=run_file,
        script="""-- SWUpdate's handler of type "edgepack": installs a bundle, or fails the update.
require("swupdate").register_handler("edgepack", function(image)
    local file = os.tmpname()
    local done = image:copy2file(file) == 0 and os.execute({lua_command} .. " -- '" .. file .. "'")
    os.remove(file)
    return (done == true or done == 0) and 0 or 1  -- Lua 5.1 returns the exit code.
end, require("swupdate").HANDLER_MASK.IMAGE_HANDLER)
""",
    ),
    "thin-edge": System(run=run_thin_edge, failed=2),
    "greengrass": System(run=run_file),
}


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("system", type=click.Choice(list(SYSTEMS)))
@config_option
@click.option(
    "--soak",
    "soak_s",
    type=Number(min=0),
    metavar="SECONDS",
    default=10.0,
    show_default=True,
    help="Time that a new model must serve without a failure before its commit.",
)
@click.option(
    "--write",
    "module",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the module of SYSTEM to this file instead.",
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def other_fleet(
    system: str, config_path: Path, soak_s: float, module: Path | None, words: tuple[str, ...]
) -> None:
    """Install bundles for SYSTEM, which manages the fleet already.

    SYSTEM calls the written module with WORDS. An installation ends after the release is proven and
    serves; the exit code of a failed proof makes SYSTEM roll back.

    \b
    Example:
      edgepack-agent other-fleet mender --write /usr/share/mender/modules/v3/edgepack
    """
    row = SYSTEMS[system]
    if module is not None:
        command = [*agent_program(), "other-fleet", system, "--soak", f"{soak_s:g}"]
        if config_path != DEFAULT_CONFIG:
            command += ["--config", str(config_path.resolve())]
        line = shlex.join(command)
        lua = '"' + line.replace("\\", "\\\\").replace('"', '\\"') + '"'
        write_program(module, row.script.replace("{command}", line).replace("{lua_command}", lua))
        click.echo(f"wrote {module}")
        return
    try:
        code = row.run(Job(config_path=config_path, soak_s=soak_s, words=words))
    except EdgepackError as error:
        click.echo(f"error: {error}", err=True)
        code = row.failed
    sys.exit(code)


def _single_file(folder: Path) -> Path:
    """Return the bundle of an artefact.

    Raises:
        DeviceError: The folder has no file, or several.
    """
    found = sorted(folder.iterdir()) if folder.is_dir() else []
    if len(found) != 1:
        raise DeviceError(
            f"the artefact has {len(found)} files, a bundle is a single file",
            found_in=str(folder),
            remedy="mender-artifact write module-image -T edgepack -f MODEL.edgepack",
        )
    return found[0]


def agent_program() -> tuple[str, ...]:
    """Return the command of this program for scripts, without options."""
    from edgepack.python_child import python_command

    found = shutil.which("edgepack-agent")
    return (found,) if found else python_command("edgepack.agent.cli")


def write_program(path: Path, content: str) -> None:
    """Write an executable script.

    Raises:
        DeviceError: The file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        path.chmod(0o755)
    except OSError as error:
        raise DeviceError(
            f"the program cannot be written: {error.strerror}", found_in=str(path)
        ) from error

"""Set-up of a device by one command: enrol, install the service, start it."""

import hashlib
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from edgepack.agent.config import AgentConfig, read_config
from edgepack.agent.enrolment.device_folder import (
    AUTHORITY_FILE,
    CERTIFICATE_FILE,
    CONFIG_FILE,
    KEY_FILE,
)
from edgepack.agent.enrolment.identity import judge_certificate, load_key
from edgepack.agent.enrolment.installation import install_package
from edgepack.agent.enrolment.package import Package
from edgepack.agent.service.installation import (
    GROUP,
    UNIT,
    USER,
    allow_state_dir,
    install_service,
)
from edgepack.agent.service.system_commands import run_system_command
from edgepack.agent.state.models import DEFAULT_STATE_DIR
from edgepack.durable import write_file
from edgepack.errors import DeviceError

FOLDER = Path("/etc/edgepack")
"""Folder of the settings that the unit names."""
NOTE_FILE = "package.sha256"
"""Digest of the package that has given the identity, in `FOLDER`."""


def set_up(package: Package, program: Path) -> Iterator[str]:
    """Enrol this device, install and start the service; yield a sentence for each step.

    1. The service is installed, so that users and folders exist.
    2. The device is enrolled, unless the folder has a valid identity from this package's fleet.
    3. Settings and keys belong to the agent's user.
    4. The service is enabled, and started; after a change a running service starts again.

    Running again repeats only what is missing: a package's token is good once.

    Args:
        package: From `edgepack fleet enroll`.
        program: The command `edgepack-agent`.

    Raises:
        DeviceError: A step failed; a second run continues there.
    """
    # 1.
    changes = list(install_service(program))
    yield from changes
    # 2.
    if is_enrolled(package, FOLDER):
        yield f"this is {package.device} already: the identity in {FOLDER} is kept"
    else:
        done = install_package(package, FOLDER)
        write_file(FOLDER / NOTE_FILE, _note_of(package))
        changes.append("enrolled")
        yield f"enrolled as {done.device}, settings in {done.config}"
        if done.before is not None:
            yield f"the settings did not fit any more; the old settings are {done.before}"
    config = read_config(FOLDER / CONFIG_FILE)
    # 3.
    for step in (*_give_settings(), *_give_state_dir(config)):
        changes.append(step)
        yield step
    # 4.
    run_system_command("systemctl", "enable", "--quiet", UNIT)
    run_system_command("systemctl", "restart" if changes else "start", UNIT)
    yield f"{UNIT} is enabled and running"


def is_enrolled(package: Package, folder: Path) -> bool:
    """Return True if a folder holds a valid identity that this very package has given.

    Args:
        package: The package.
        folder: Folder of settings and keys.
    """
    try:
        if (folder / NOTE_FILE).read_bytes() != _note_of(package):
            return False
        read_config(folder / CONFIG_FILE)
        key = load_key((folder / KEY_FILE).read_bytes(), KEY_FILE)
        judge_certificate(
            (folder / CERTIFICATE_FILE).read_text(),
            key=key.public_key(),
            device=package.device,
            authority=(folder / AUTHORITY_FILE).read_bytes(),
            now=time.time(),
        )
    except (DeviceError, OSError, ValueError):
        return False
    return True


def _note_of(package: Package) -> bytes:
    """Return the digest of a package: a second run recognizes the package by it."""
    return hashlib.sha256(msgspec.json.encode(package)).hexdigest().encode() + b"\n"


def _give_settings() -> Iterator[str]:
    """Give settings and keys to the agent's user, which renews the certificate."""
    for path in (FOLDER, *FOLDER.iterdir()):
        if path.lstat().st_uid == 0 and not path.is_symlink():
            shutil.chown(path, USER, USER)
            if path.name == KEY_FILE:
                yield f"{FOLDER} belongs to user {USER}"


def _give_state_dir(config: AgentConfig) -> Iterator[str]:
    """Make a state folder other than the unit's, for agent and applications."""
    state_dir = Path(config.state_dir)
    if state_dir == DEFAULT_STATE_DIR:
        return
    yield from allow_state_dir(state_dir)
    if not state_dir.exists():
        state_dir.mkdir(parents=True)
        shutil.chown(state_dir, USER, GROUP)
        state_dir.chmod(0o2750)
        yield f"made {state_dir}"

"""Check of the files that the settings name: may the agent's user read them?"""

import os
import pwd
from collections.abc import Iterator
from pathlib import Path

from edgepack.agent.config import AgentConfig
from edgepack.agent.doctor.findings import Device, Finding, wrong
from edgepack.bundle.pkcs11_uri import is_uri


def check_rights(device: Device) -> Iterator[Finding]:
    """Check that the agent's user, the owner of the state folder, may read the settings' files.

    The modes of files and folders decide; doctor may run as another user, such as root.
    """
    uid = Path(device.state_dir).stat().st_uid if Path(device.state_dir).is_dir() else 0
    if device.config is None or uid == 0:  # Root may read all.
        return
    try:
        user = pwd.getpwuid(uid)
    except KeyError:
        groups, name = set(), str(uid)
    else:
        groups, name = set(os.getgrouplist(user.pw_name, user.pw_gid)), user.pw_name
    files = [Path(file).absolute() for file in _files(device.config)]
    needed = dict.fromkeys(files, (4, "read", "chown {name} {path}"))
    enter = (0o1, "enter", "chmod a+x {path}")
    needed |= {folder: enter for path in files for folder in reversed(path.parents)}
    for path, (bit, act, remedy) in needed.items():
        try:
            found = path.stat()
        except OSError:
            continue  # Other checks report a missing file.
        shift = 6 if found.st_uid == uid else 3 if found.st_gid in groups else 0
        if not found.st_mode >> shift & bit:
            mode = f"mode {found.st_mode & 0o777:o}"
            fact = f"the agent's user {name} may not {act} {path} ({mode})"
            yield wrong("rights", fact, f"as root: {remedy.format(name=name, path=path)}")


def _files(config: AgentConfig) -> Iterator[str]:
    """Yield each file that the agent reads."""
    broker = config.broker
    named = [*config.trust.keys, config.trust.root, config.signing_certificate, config.signing_key]
    if broker is not None:
        named += [broker.ca_file, broker.cert_file, broker.key_file, broker.password_file]
    yield from (file for file in named if file and not is_uri(file))

"""Commands of root that continue as the agent's user."""

import os
import pwd
from pathlib import Path


def become_owner(state_dir: Path) -> None:
    """Continue as the owner of the state folder if this is root.

    The agent of a service runs as a user of its own, and could not write root's files.
    """
    try:
        found = state_dir.stat()
    except OSError:
        return  # The caller makes the folder, or explains.
    if os.geteuid() == 0 and found.st_uid != 0:
        os.setgroups(os.getgrouplist(user_name(found.st_uid), found.st_gid))
        os.setgid(found.st_gid)
        os.setuid(found.st_uid)


def user_name(uid: int) -> str:
    """Return the name of a user, or its number without a name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)

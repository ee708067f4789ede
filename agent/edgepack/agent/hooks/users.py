"""The user that runs hooks from bundles: not the agent's user, unless configured."""

import os
import pwd

import msgspec

from edgepack.errors import DeviceError


class HookUser(msgspec.Struct, frozen=True, kw_only=True):
    """A user of this system.

    Attributes:
        name: Login name.
        uid, gid, groups: Numbers of user, primary group and all groups.
        home: Home folder.
    """

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str


def find_bundle_user(name: str) -> HookUser:
    """Return the user that runs hooks from bundles.

    Args:
        name: From the settings, `hooks.user`.

    Raises:
        DeviceError: No user is named, there is no such user, or the agent may not switch to the
            user.
    """
    if not name:
        raise DeviceError(
            "hooks from bundles are allowed, and no user is named to run hooks",
            found_in="hooks.user",
            remedy='user = "edgepack-hooks", a user with no other rights; user = "root" runs '
            "the hooks of every bundle as root",
        )
    try:
        found = pwd.getpwnam(name)
    except KeyError as error:
        raise DeviceError(
            f"there is no user {name!a} to run hooks from bundles",
            found_in="hooks.user",
            remedy=f"useradd --system --no-create-home {name}",
        ) from error
    if os.geteuid() not in (0, found.pw_uid):
        raise DeviceError(
            f"only root may run hooks as another user, here {name!a}",
            found_in="hooks.user",
            remedy="name the agent's own user, run the agent as root, or leave from_bundles out",
        )
    return HookUser(
        name=found.pw_name,
        uid=found.pw_uid,
        gid=found.pw_gid,
        groups=tuple(os.getgrouplist(found.pw_name, found.pw_gid)),
        home=found.pw_dir,
    )

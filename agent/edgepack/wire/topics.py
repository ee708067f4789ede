"""All MQTT topics, in one file.

Four patterns are the whole access rule for a device: it reads `…/d/{id}/dn/#`, `…/meta/#` and
`…/b/#`, and writes `…/d/{id}/up/#`.
"""

import re
from typing import Literal

PREFIX = "ep/1"
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")

UpKind = Literal["reported", "need", "telemetry", "event"]
UP_KINDS: tuple[UpKind, ...] = ("reported", "need", "telemetry", "event")

DEVICE, FILE, METADATA = "{device}", "{sha256}", "{metadata}"
"""In the topics of a route (`edgepack.wire.router`) these stand for any device, any file of a
bundle, and any file of TUF metadata."""
OPEN_LEVELS = {
    DEVICE: _NAME,
    FILE: re.compile(r"[0-9a-f]{64}"),
    METADATA: re.compile(r"[a-z0-9.-]{1,80}"),
}


def check_name(name: str, what: str) -> str:
    """Returns `name` when it can stand in a topic and as an MQTT client id.

    Raises:
        ValueError: It holds anything but letters, digits, `_` and `-`, or is over 64 long.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"{what} {name!r} must be 1 to 64 of A-Z a-z 0-9 _ -")
    return name


def desired(tenant: str, device: str) -> str:
    """Controller to device, retained: what the fleet wants of it."""
    return f"{PREFIX}/{tenant}/d/{device}/dn/desired"


def repair(tenant: str, device: str, sha256: str) -> str:
    """Controller to one device: chunks of the file with that digest."""
    return f"{PREFIX}/{tenant}/d/{device}/dn/b/{sha256}"


def broadcast(tenant: str, sha256: str) -> str:
    """Depot to every device that listens: chunks of the file with that digest."""
    return f"{PREFIX}/{tenant}/b/{sha256}"


def coded(tenant: str, sha256: str) -> str:
    """Depot to every device that listens: several chunks of that file in one message."""
    return f"{broadcast(tenant, sha256)}/x"


def metadata(tenant: str, file: str) -> str:
    """Controller to every device, retained: a file of TUF metadata."""
    return f"{PREFIX}/{tenant}/meta/{file}"


def device_metadata(tenant: str, device: str, file: str) -> str:
    """Controller to one device: a file of TUF metadata that it lacks."""
    return f"{PREFIX}/{tenant}/d/{device}/dn/meta/{file}"


def certificate(tenant: str, device: str) -> str:
    """Controller to one device: its next certificate."""
    return f"{PREFIX}/{tenant}/d/{device}/dn/certificate"


def session(tenant: str, device: str) -> str:
    """Controller to one device: the session of its signed batches."""
    return f"{PREFIX}/{tenant}/d/{device}/dn/session"


def up(tenant: str, device: str, kind: UpKind) -> str:
    """Device to controller."""
    return f"{PREFIX}/{tenant}/d/{device}/up/{kind}"


def device_subscriptions(tenant: str, device: str) -> tuple[str, ...]:
    """Filters that a device holds all the time (broadcast topics come and go per file)."""
    return (f"{PREFIX}/{tenant}/d/{device}/dn/#",)


def metadata_subscription(tenant: str) -> str:
    """The filter of devices that trust a root."""
    return metadata(tenant, "#")


def controller_subscription(tenant: str) -> str:
    """The one filter that the controller holds: everything that devices say."""
    return f"{PREFIX}/{tenant}/d/+/up/+"

"""MQTT topics, all in a single file.

Four patterns are the whole access rule for a device: a device reads `…/d/{id}/dn/#`, `…/meta/#` and
`…/b/#`, and writes `…/d/{id}/up/#`.
"""

import re
from typing import Literal

PREFIX = "ep/1"
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")

UpKind = Literal["reported", "need", "telemetry", "event", "sample", "log"]
UP_KINDS: tuple[UpKind, ...] = ("reported", "need", "telemetry", "event", "sample", "log")

DEVICE, FILE, METADATA = "{device}", "{sha256}", "{metadata}"
"""In the topics of a route (`edgepack.wire.router`) these stand for any device, any file of a
bundle, and any file of TUF metadata."""
OPEN_LEVELS = {
    DEVICE: _NAME,
    FILE: re.compile(r"[0-9a-f]{64}"),
    METADATA: re.compile(r"[a-z0-9.-]{1,80}"),
}


def check_name(name: str, what: str) -> str:
    """Return `name` if valid in a topic and as an MQTT client id.

    Raises:
        ValueError: The name holds anything but letters, digits, `_` and `-`, or is over 64 long.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"{what} {name!r} must be 1 to 64 of A-Z a-z 0-9 _ -")
    return name


def desired(tenant: str, device: str) -> str:
    """Return the topic of a device's desired state (controller to device, retained)."""
    return f"{PREFIX}/{tenant}/d/{device}/dn/desired"


def repair(tenant: str, device: str, sha256: str) -> str:
    """Return the topic of a file's chunks for a single device (controller to device)."""
    return f"{PREFIX}/{tenant}/d/{device}/dn/b/{sha256}"


def broadcast(tenant: str, sha256: str) -> str:
    """Return the topic of a file's chunks for all listening devices (depot to devices)."""
    return f"{PREFIX}/{tenant}/b/{sha256}"


def coded(tenant: str, sha256: str) -> str:
    """Return the topic of a file's coded chunks for all listening devices (depot to devices)."""
    return f"{broadcast(tenant, sha256)}/x"


def metadata(tenant: str, file: str) -> str:
    """Return the topic of a TUF metadata file for all devices (controller to devices, retained)."""
    return f"{PREFIX}/{tenant}/meta/{file}"


def device_metadata(tenant: str, device: str, file: str) -> str:
    """Return the topic of a TUF metadata file for a single device (controller to device)."""
    return f"{PREFIX}/{tenant}/d/{device}/dn/meta/{file}"


def certificate(tenant: str, device: str) -> str:
    """Return the topic of a device's next certificate (controller to device)."""
    return f"{PREFIX}/{tenant}/d/{device}/dn/certificate"


def session(tenant: str, device: str) -> str:
    """Return the topic of the session of a device's signed batches (controller to device)."""
    return f"{PREFIX}/{tenant}/d/{device}/dn/session"


def received(tenant: str, device: str) -> str:
    """Return the topic of a device's acknowledged telemetry (controller to device)."""
    return f"{PREFIX}/{tenant}/d/{device}/dn/received"


def samples_taken(tenant: str, device: str) -> str:
    """Return the topic of a device's acknowledged samples (controller to device)."""
    return f"{PREFIX}/{tenant}/d/{device}/dn/samples"


def up(tenant: str, device: str, kind: UpKind) -> str:
    """Return the topic of a device's messages of a kind (device to controller)."""
    return f"{PREFIX}/{tenant}/d/{device}/up/{kind}"


def device_subscriptions(tenant: str, device: str) -> tuple[str, ...]:
    """Return the topic filters of a device's permanent subscriptions, without files' broadcasts."""
    return (f"{PREFIX}/{tenant}/d/{device}/dn/#",)


def metadata_subscription(tenant: str) -> str:
    """Return the filter of devices that trust a root."""
    return metadata(tenant, "#")


def controller_subscription(tenant: str) -> str:
    """Return the topic filter of the controller: all messages of devices."""
    return f"{PREFIX}/{tenant}/d/+/up/+"

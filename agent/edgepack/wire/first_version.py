"""Messages of version 1 made into those of version 2: one model a device, then many.

Plain dictionaries, so that this stays as it is whatever the types of today become.
"""

from collections.abc import Callable
from typing import Any

Document = dict[str, Any]

_OF_DEVICE = ("online", "at", "boot", "count", "facts")
_OF_MODEL = ("state", "because", "sequence", "rollout", "target", "active", "previous", "progress")


def _same(message: Document) -> Document:
    return message


def migrate_order(message: Document) -> Document:
    """What a device was told of its one model, as what it is told of one of many."""
    return {key: value for key, value in message.items() if key != "v"} | {"do": "run"}


def _desired(message: Document) -> Document:
    name = message["bundle"]["name"]
    return {"sequence": message["sequence"], "models": {name: migrate_order(message)}}


def _reported(message: Document) -> Document:
    of_device = {key: message[key] for key in _OF_DEVICE if key in message}
    of_model = {key: message[key] for key in _OF_MODEL if key in message}
    target, active = message.get("target"), message.get("active")
    if target and active and target["name"] != active["bundle"]["name"]:
        # One model had taken the place of another: each is said for itself.
        models = {
            target["name"]: of_model | {"active": None},
            active["bundle"]["name"]: {"active": active},
        }
    elif bundle := target or (active and active["bundle"]):
        models = {bundle["name"]: of_model}
    else:
        models = {}
    return of_device | {"sequence": message.get("sequence", 0), "models": models}


MIGRATIONS: dict[str, Callable[[Document], Document]] = {
    "Batch": _same,
    "Session": _same,
    "Certificate": _same,
    "Desired": _desired,
    "Reported": _reported,
    "Need": _same,
    "Telemetry": _same,
    "Event": _same,
}

"""Changes between two reports of a device, which sends whole reports seldom.

Changes apply to the report before, so the controller accepts changes only if their batch has the
number that follows the last accepted report. A controller that missed a report gives the device a
new session, and the device answers with its whole report.
"""

import msgspec

from edgepack.decoding import decode_json
from edgepack.errors import TransferError
from edgepack.wire.messages import decode, encode
from edgepack.wire.reports import Changes, Reported

_SEPARATE = frozenset({"v", "minor", "at", "models"})

_Fields = dict[str, msgspec.Raw]


class _Marked(msgspec.Struct):
    """Fields that only changes have."""

    changes: _Fields | None = None


def is_changes(content: bytes) -> bool:
    """Return True if an encoded message is `Changes`; False for a `Reported` or malformed bytes."""
    try:
        return decode_json(content, _Marked).changes is not None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


def find_changes(before: Reported, after: Reported) -> Changes:
    """Return the changes that lead from one report to another; none for a heartbeat."""
    known = {name: _fields(msgspec.json.encode(model)) for name, model in before.models.items()}
    models = {
        name: _changed(known.get(name, {}), _fields(msgspec.json.encode(model)))
        for name, model in after.models.items()
    }
    fields = _changed(_fields(encode(before)), _fields(encode(after)))
    return Changes(
        at=after.at,
        changes={name: raw for name, raw in fields.items() if name not in _SEPARATE},
        models={name: changed for name, changed in models.items() if changed},
    )


def apply_changes(before: bytes, changes: Changes) -> Reported:
    """Return the report after changes.

    Args:
        before: The encoded report before.
        changes: Received changes.

    Raises:
        TransferError: The result is not a report.
    """
    fields = _fields(before)
    models = decode_json(fields.get("models", b"{}"), dict[str, _Fields])
    for name, changed in changes.models.items():
        models[name] = models.get(name, {}) | changed
    whole = fields | changes.changes
    whole["at"] = msgspec.Raw(msgspec.json.encode(changes.at))
    whole["models"] = msgspec.Raw(msgspec.json.encode(models))
    after = decode(msgspec.json.encode(whole), Reported)
    if not after.online:
        raise TransferError("malformed changes: only a last will marks a device offline")
    return after


def _fields(content: bytes | msgspec.Raw) -> _Fields:
    return decode_json(content, _Fields)


def _changed(before: _Fields, after: _Fields) -> _Fields:
    return {
        name: msgspec.Raw(bytes(raw))
        for name, raw in after.items()
        if name not in before or bytes(before[name]) != bytes(raw)
    }

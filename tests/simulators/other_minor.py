"""Runs a program of edgepack as it spoke one minor version ago, or will one minor version from now.

    python -m tests.simulators.other_minor newer edgepack.agent.cli run --config agent.toml

A newer one says things that nobody here has heard of: fields wherever there may be some, a kind of
event and a state of a model. An older one lacks what the newest minor version brought.
"""

import importlib
import json
import sys
from typing import Any

from edgepack.versions import Version
from edgepack.wire import messages

UNHEARD = {"invented_later": {"is": ["of", 1, "use"]}}
NEW_KIND, NEW_STATE = "moved", "WARMING_UP"
BROUGHT = {"Reported": ("trust",)}
"""By message: what it has since the newest minor version."""

_encode = messages.encode


def main() -> None:
    """Makes the program speak otherwise, then runs it."""
    age, program, *arguments = sys.argv[1:]
    say, step = {"newer": (_newer, 1), "older": (_older, -1)}[age]
    version = Version(messages.WIRE_VERSION.major, messages.WIRE_VERSION.minor + step)

    def encode(message: messages.Message) -> bytes:
        document = json.loads(_encode(message))
        say(type(message).__name__, document)
        return json.dumps(document | {"minor": version.minor}).encode()

    # Before any module takes them by name.
    messages.encode, messages.WIRE_VERSION = encode, version
    sys.argv = [program, *arguments]
    importlib.import_module(program).main()


def _newer(kind: str, document: dict[str, Any]) -> None:
    document |= UNHEARD
    for model in document.get("models", {}).values():
        model |= UNHEARD
        for part in ("bundle", "manifest", "target", "active"):
            if model.get(part):
                model[part] |= UNHEARD
        if model.get("state") == "VERIFIED":
            model["state"] = NEW_STATE
    if document.get("facts"):
        document["facts"] |= UNHEARD
    if kind == "Event" and document["kind"] == "transition":
        document["kind"] = NEW_KIND
    if kind == "Need":
        document["files"] = [file | UNHEARD for file in document["files"]]
    if kind == "Telemetry":
        document["latency"] |= UNHEARD


def _older(kind: str, document: dict[str, Any]) -> None:
    for field in BROUGHT.get(kind, ()):
        del document[field]


if __name__ == "__main__":
    main()

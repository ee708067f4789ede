"""Runs a program of edgepack that speaks the next minor version.

    python -m tests.simulators.newer_minor edgepack.agent.cli run --config agent.toml

Its messages have unknown fields in every object, an unknown kind of event and an unknown state.
"""

import importlib
import json
import sys
from typing import Any

from edgepack.versions import Version
from edgepack.wire import messages

UNHEARD = {"invented_later": {"is": ["of", 1, "use"]}}
NEW_KIND, NEW_STATE = "moved", "WARMING_UP"

_encode = messages.encode


def main() -> None:
    """Change the program's encoding of messages, then run the program."""
    program, *arguments = sys.argv[1:]
    version = Version(messages.WIRE_VERSION.major, messages.WIRE_VERSION.minor + 1)

    def encode(message: messages.Message) -> bytes:
        document = json.loads(_encode(message))
        _add_unknown(type(message).__name__, document)
        return json.dumps(document | {"minor": version.minor}).encode()

    # Before any module takes them by name.
    messages.encode, messages.WIRE_VERSION = encode, version
    sys.argv = [program, *arguments]
    importlib.import_module(program).main()


def _add_unknown(kind: str, document: dict[str, Any]) -> None:
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


if __name__ == "__main__":
    main()

"""JSON output of `--json`, equal in all commands."""

import json
import re

import msgspec

_STEERING = re.compile(r"[\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""What JSON may hold as it is and a terminal may obey: C1 controls, directions of writing."""


def json_text(value: object) -> str:
    """Return a value as JSON: indented by two, its keys in order of declaration.

    A path is its text, and characters that could steer a terminal are written as JSON escapes.
    """
    text = msgspec.json.format(msgspec.json.encode(value, enc_hook=str), indent=2).decode()
    return _STEERING.sub(lambda found: json.dumps(found[0])[1:-1], text)

"""What `--json` prints, the same in every command."""

import msgspec


def json_text(value: object) -> str:
    """A value as JSON: indented by two, its keys in the order in which they are declared."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()

"""Names as a file wants them, and as people read them."""

import msgspec


def toml_key(name: str) -> str:
    """A name as a TOML key; quoted where a bare one is not allowed.

    Args:
        name: Any name, such as an input's.
    """
    bare = name.isascii() and all(c.isalnum() or c in "_-" for c in name)
    return name if bare and name else msgspec.json.encode(name).decode()


def short_provider(provider: str, device: str) -> str:
    """A provider and its device kind in a word or two."""
    name = provider.removesuffix("ExecutionProvider")
    return name if name.lower() == device else f"{name} {device}"

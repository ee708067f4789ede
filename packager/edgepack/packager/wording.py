"""Words for people: nouns that fit their number, names as a file wants them."""

import msgspec


def counted(count: int, noun: str, nouns: str = "") -> str:
    """A number with its noun: `1 node`, `12 nodes`.

    Args:
        count: How many.
        noun: For one of them.
        nouns: For more; the same with an s where it is left out.
    """
    return f"{count} {noun if count == 1 else nouns or f'{noun}s'}"


def toml_key(name: str) -> str:
    """A name as a TOML key; quoted where a bare one is not allowed.

    Args:
        name: Any name, such as an input's.
    """
    bare = name.isascii() and all(c.isalnum() or c in "_-" for c in name)
    return name if bare and name else msgspec.json.encode(name).decode()

"""Words for people that fit their number."""


def counted(count: int, noun: str) -> str:
    """A number with its noun: `1 node`, `12 nodes`.

    Args:
        count: How many.
        noun: For one of them; more get an s.
    """
    return f"{count} {noun if count == 1 else f'{noun}s'}"

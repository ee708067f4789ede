"""English text that needs no download: the documentation inside Python itself."""

import random
import re
from pydoc_data import topics

_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9,.;:()'/+=%&-]*")


def all_words() -> list[str]:
    """Return every word of Python's help topics, prose and code, in a fixed order."""
    pages = topics.topics
    return _WORD.findall(" ".join(pages[name] for name in sorted(pages)))


def short_line(rng: random.Random, words: list[str], longest: int) -> str:
    """Return one to five consecutive words, at most `longest` characters."""
    start = rng.randrange(len(words) - 8)
    line = words[start]
    for word in words[start + 1 : start + rng.randint(1, 5)]:
        if len(line) + 1 + len(word) > longest:
            break
        line += f" {word}"
    return line[:longest].strip()

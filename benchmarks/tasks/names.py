"""Arabic names in Latin letters: the decoder of a romanizer (recurrent, with attention).

A name is right if the letters, chosen step by step and fed back with the decoder's own state, match
a spelling in the package's own dictionary.
"""

import json
import random
import sqlite3
from contextlib import closing
from functools import cache

import numpy as np

from benchmarks.tasks.float_model import open_float_model
from benchmarks.tasks.places import cached_arrays, unpacked_folder
from benchmarks.tasks.task import Array, Feeds, Part, Run, Task

_FOLDER = unpacked_folder("arabic-name-romanizer==0.2.0", "arabic_name_romanizer") / "resources"
_PADDING, _BEGIN, _END, _UNKNOWN = range(4)
_LENGTH = 24
"""Tokens of a name, filled up: country and role, which nobody knows, its letters and an end."""
_LONGEST = 32
"""Letters that the package itself goes on for."""
_CALIBRATION = (0, 100)
_LABELLED: dict[Part, tuple[int, int]] = {"development": (100, 200), "evaluation": (200, 2200)}
"""Which of the shuffled names belong to a set."""
_SEED = 51


@cache
def _tokens() -> list[str]:
    tokens: list[str] = json.loads((_FOLDER / "vocab.json").read_text("utf-8"))["tokens"]
    return tokens


@cache
def _spellings() -> dict[str, list[str]]:
    """Return names that were met ten times or more, each with all its spellings."""
    with closing(sqlite3.connect(f"file:{_FOLDER / 'names.sqlite3'}?mode=ro", uri=True)) as names:
        rows = names.execute(
            "SELECT arabic_key, latin, count FROM units ORDER BY arabic_key, latin"
        )
        found: dict[str, list[str]] = {}
        counts: dict[str, int] = {}
        for arabic, latin, count in rows:
            if 3 <= len(arabic) <= _LENGTH - 3:
                found.setdefault(arabic, []).append(latin.casefold())
                counts[arabic] = counts.get(arabic, 0) + count
    return {arabic: found[arabic] for arabic in found if counts[arabic] >= 10}


def _make(first: int, end: int) -> dict[str, Array]:
    """Make names, and the encoder's outputs."""
    names = sorted(_spellings())
    random.Random(_SEED).shuffle(names)
    names = names[first:end]
    index = {token: number for number, token in enumerate(_tokens())}
    encode = open_float_model(_FOLDER / "encoder.onnx")
    made: dict[str, list[Array]] = {"memory": [], "src_mask": [], "hidden": []}
    for name in names:
        words = ["<UNK_COUNTRY>", "<ROLE_UNKNOWN>", *name, "<EOS>"]
        ids = np.full((1, _LENGTH), _PADDING, np.int64)
        ids[0, : len(words)] = [index.get(word, _UNKNOWN) for word in words]
        encoded = encode({"src": ids, "src_mask": ids == _PADDING})
        for kept, value in zip(made.values(), encoded.values(), strict=True):
            kept.append(value)
    return {"names": np.array(names), **{key: np.stack(kept) for key, kept in made.items()}}


def _samples(name: str, first: int, end: int) -> tuple[list[Feeds], list[str]]:
    arrays = cached_arrays(f"names_{name}", lambda: _make(first, end))
    begin = np.array([[_BEGIN]], np.int64)
    feeds: list[Feeds] = [
        {"prefix": begin, **{key: arrays[key][index] for key in ("memory", "src_mask", "hidden")}}
        for index in range(len(arrays["names"]))
    ]
    return feeds, arrays["names"].tolist()


def _romanize(run: Run, sample: Feeds) -> str:
    feeds = dict(sample)
    letters: list[str] = []
    for step in range(_LONGEST):
        scores, feeds["hidden"] = run(feeds).values()
        likely = scores[0].copy()
        likely[[_PADDING, _BEGIN, _UNKNOWN, *([_END] if step == 0 else [])]] = -np.inf
        best = int(likely.argmax())
        if best == _END:
            break
        letters.append(_tokens()[best])
        feeds["prefix"] = np.array([[best]], np.int64)
    return "".join(letters).strip().casefold()


def _score(run: Run, part: Part) -> float:
    """Return the share of names with correctly spelled letters."""
    feeds, names = _samples(part, *_LABELLED[part])
    right = [
        _romanize(run, sample) in _spellings()[name]
        for sample, name in zip(feeds, names, strict=True)
    ]
    return sum(right) / len(right)


def score_development(run: Run) -> float:
    """Return the metric for a build's choice: `edgepack build --metric`."""
    return _score(run, "development")


TASK = Task(
    name="names",
    model=_FOLDER / "decoder.onnx",
    shapes={
        "prefix": (1, 1),
        "memory": (1, _LENGTH, 256),
        "src_mask": (1, _LENGTH),
        "hidden": (1, 2, 256),
    },
    metric="right spellings",
    calibration=lambda: _samples("calibration", *_CALIBRATION)[0],
    score=_score,
)

"""Kind of a file: Google's Magika on the files of this machine.

The label is the file's extension, so accuracy varies by machine (float: .91 to .92). The samples
are made once and kept in `.bench/data`.
"""

import json
import os
import random
import re
import sysconfig
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np

from benchmarks.tasks.places import cached_arrays, package_folder
from benchmarks.tasks.task import Array, Feeds, Part, Run, Task, accuracy

_EXTENSIONS_BY_LABEL = """
python .py | pythonbytecode .pyc | c .c .h | cpp .cpp .hpp | go .go | java .java | ruby .rb
javascript .js | typescript .ts | lua .lua | perl .pl | tcl .tcl | shell .sh | fortran .f90 | m4 .m4
html .html | css .css | xml .xml | svg .svg | markdown .md | rst .rst | json .json | yaml .yaml
toml .toml | ini .ini | csv .csv | pdf .pdf | png .png | jpeg .jpg | gif .gif | ttf .ttf
elf .so | pebin .exe | ar .a | zip .zip .npz | gzip .gz | npy .npy
"""
_LABEL_BY_EXTENSION = {
    extension: label
    for label, *extensions in map(str.split, re.split(r"[|\n]", _EXTENSIONS_BY_LABEL.strip()))
    for extension in extensions
}
_MOST_BY_EXTENSION = 4000
_CALIBRATION = (0, 8)
_LABELLED: dict[Part, tuple[int, int]] = {"development": (40, 52), "evaluation": (8, 40)}
"""Which of an extension's shuffled files belong to a set: equal sets, so no kind of file rules."""
_LARGEST_SETS = {"calibration": 200, "development": 300, "evaluation": 600}
_WINDOW_BYTES = 4096
_TOKENS = 1024
_PADDING = 256
_FOLDER = package_folder("magika") / "models" / "standard_v3_3"


def _tokens(file: Path) -> Array:
    """Return Magika's input: the first and the last 1,024 bytes, without white space at the ends.

    Returns:
        int16 (2048,): bytes, 256 where there is none.
    """
    content = file.read_bytes()
    first = content[:_WINDOW_BYTES].lstrip()[:_TOKENS]
    last = content[-_WINDOW_BYTES:].rstrip()[-_TOKENS:]
    tokens = np.full(2 * _TOKENS, _PADDING, np.int16)
    tokens[: len(first)] = list(first)
    tokens[2 * _TOKENS - len(last) :] = list(last)
    return tokens


def _files() -> Iterator[Path]:
    """Yield this machine's files, each once, in a fixed order."""
    seen = set()
    paths = sysconfig.get_paths()
    for root in ("/usr", paths["stdlib"], paths["purelib"]):
        for folder, subfolders, names in os.walk(root):
            subfolders.sort()
            for name in sorted(names):
                file = Path(folder, name)
                if file not in seen and file.suffix.lower() in _LABEL_BY_EXTENSION:
                    seen.add(file)
                    yield file


@cache
def _shuffled_files() -> dict[str, list[Path]]:
    """Return usable files by extension, shuffled with a fixed seed."""
    found: dict[str, list[Path]] = {}
    for file in _files():
        listed = found.setdefault(file.suffix.lower(), [])
        if len(listed) < _MOST_BY_EXTENSION:
            listed.append(file)
    rng = random.Random(5)
    shuffled = {}
    for extension in sorted(found):
        usable = [file for file in found[extension] if _is_usable(file)]
        rng.shuffle(usable)
        shuffled[extension] = usable
    return shuffled


def _is_usable(file: Path) -> bool:
    return file.is_file() and not file.is_symlink() and 200 < file.stat().st_size < 5_000_000


def _make(first: int, end: int) -> dict[str, Array]:
    known = json.loads((_FOLDER / "config.min.json").read_text())["target_labels_space"]
    tokens, labels = [], []
    for extension, files in _shuffled_files().items():
        label = _LABEL_BY_EXTENSION[extension]
        if label not in known:
            continue
        for file in files[first:end]:
            tokens.append(_tokens(file))
            labels.append(known.index(label))
    order = np.random.default_rng(0).permutation(len(tokens))
    return {"tokens": np.stack(tokens)[order], "labels": np.array(labels)[order]}


def _samples(name: str, first: int, end: int) -> tuple[list[Feeds], list[int]]:
    arrays = cached_arrays(f"magika_{name}", lambda: _make(first, end))
    most = _LARGEST_SETS[name]
    feeds: list[Feeds] = [
        {"bytes": tokens[None].astype(np.int32)} for tokens in arrays["tokens"][:most]
    ]
    return feeds, arrays["labels"][:most].tolist()


def _score(run: Run, part: Part) -> float:
    return accuracy(run, *_samples(part, *_LABELLED[part]))


def score_development(run: Run) -> float:
    """Return the metric for a build's choice: `edgepack build --metric`."""
    return _score(run, "development")


TASK = Task(
    name="magika",
    model=_FOLDER / "model.onnx",
    shapes={"bytes": (1, 2 * _TOKENS)},
    metric="accuracy",
    calibration=lambda: _samples("calibration", *_CALIBRATION)[0],
    score=_score,
)

